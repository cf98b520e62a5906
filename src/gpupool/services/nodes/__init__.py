"""Nodes: their health, images, reservations, lost nodes, and the GPU capacity over time."""
