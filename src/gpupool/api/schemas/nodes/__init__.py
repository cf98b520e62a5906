"""Schemas of nodes, images, reservations and joining."""
