"""Usage reports as files: CSV, and a self-contained HTML page with figures. Pure functions from values to text."""
