"""Screens that refresh: ``top``, ``--watch`` and their keys."""
