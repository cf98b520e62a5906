"""Explanations: why a replica waits, what would help, when it may start, and dry runs."""
