"""Measurements of a node, once per second: GPUs, programs, and which program uses which GPU."""
