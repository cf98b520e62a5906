"""Holds: GPUs kept for starving work, and backfill of other work on them."""
