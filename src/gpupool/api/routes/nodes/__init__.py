"""Routes for nodes, images, reservations, and the machines of a cluster."""
