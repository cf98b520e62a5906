"""Steps in the life of a workload: what it waits for, how its processes start, and the transitions themselves."""
