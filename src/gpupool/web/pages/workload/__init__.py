"""One workload, its output and its terminal."""
