"""Hides the package of this name from Jupyter Servers of the tests, whose start would take four times as long.

``jsonschema`` imports it to check addresses with letters of all languages, and works without it. Its import compiles a
grammar, which takes a second.
"""

raise ImportError(__doc__)
