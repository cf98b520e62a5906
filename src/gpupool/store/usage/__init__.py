"""Usage in the database: GPU time, samples, capacity over time, and their sums."""
