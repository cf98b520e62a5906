"""Convert command-line options to request bodies."""
