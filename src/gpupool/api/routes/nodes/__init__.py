"""Routes for nodes, images, reservations, and the nodes of a cluster."""
