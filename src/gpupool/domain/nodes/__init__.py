"""Nodes and GPUs: shares, sharing modes, reservations, capacity, heads and joining."""
