"""Steps in the life of a workload: wait conditions, start of its processes, and transitions."""
