"""The fields of a request: types, limits, and conflicts between them."""
