"""Nodes and GPUs."""
