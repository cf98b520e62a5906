"""Settings of the pool."""
