"""Schemas of workloads, plans, manifests and files."""
