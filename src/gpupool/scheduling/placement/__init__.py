"""Placement: which nodes and GPUs a replica or a gang gets."""
