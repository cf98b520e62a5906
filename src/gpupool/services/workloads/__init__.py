"""Workloads: submission, plans, changes of state, leases, output, manifests and expiry."""
