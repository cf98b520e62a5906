"""Kubernetes kinds and names on the command line."""
