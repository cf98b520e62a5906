"""Routes for workloads, their output and files."""
