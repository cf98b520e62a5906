"""The dashboard: pages rendered on the server over the same services as the API, and the few scripts that they need.

``routes/`` has one module for each group of pages, ``views/`` what a page shows as plain values, ``templates/`` how it
looks, ``static/`` styles and scripts (``static/vendor`` is other people's, unchanged).
"""
