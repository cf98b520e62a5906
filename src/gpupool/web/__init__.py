"""The dashboard: pages rendered on the server over the same services as the API, and the scripts that they need.

``pages/`` has a module for each page, or a folder with its routes and its view (the values of the page). ``kit/`` has
the parts that pages share, ``templates/`` the HTML by page, ``static/`` styles and scripts (``static/vendor`` is
third-party code, unchanged).
"""
