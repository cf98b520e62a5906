"""Slices with NVIDIA's Multi-Process Service."""
