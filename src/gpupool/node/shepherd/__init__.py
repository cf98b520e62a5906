"""The shepherd: one process per program that starts it, owns its streams and its log, and ends its process tree."""
