"""The database schema: tables, and migrations from older versions."""
