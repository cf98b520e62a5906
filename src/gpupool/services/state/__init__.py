"""State of the pool in memory: workloads, users and projects, nodes, and waiting clients. It imports only ports."""
