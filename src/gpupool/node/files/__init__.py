"""Files of workloads on a node: received blobs, the job folders made from them, and results."""
