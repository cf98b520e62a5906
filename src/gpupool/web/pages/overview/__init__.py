"""The overview of the pool."""
