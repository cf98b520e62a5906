"""Commands for workloads, leases and files."""
