"""Conversion of domain values to the JSON of the API."""
