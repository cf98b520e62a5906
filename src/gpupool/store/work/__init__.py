"""Workloads, replicas, leases and events in the database."""
