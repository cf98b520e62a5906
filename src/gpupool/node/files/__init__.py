"""Files of workloads on a node: the blobs that it was given, the folders made of them, and what programs put there."""
