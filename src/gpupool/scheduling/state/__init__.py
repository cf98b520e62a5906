"""The state of the scheduler: nodes, queue, running replicas, gangs, usage and reservations, as arrays."""
