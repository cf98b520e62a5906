"""Files that travel: a sender's folder is kept as blobs, brought to nodes, and what it makes there comes back."""
