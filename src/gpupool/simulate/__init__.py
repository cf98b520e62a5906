"""The simulator: the pool's own scheduler over a trace of work, in virtual time.

Nothing here touches a clock, a network or a thread; only `files` reads a disk. `values` are jobs and what became of
them, `rows` reads tables with limits, `traces` knows the formats of work, `clusters` those of nodes, `load` makes a
trace heavier or lighter, `engine` drives `scheduling.Scheduler` from event to event, `stranded` says how much of what
is free is of no use, and `metrics` sums up. As in the pool, evicted work ends after its grace period, waits again as
if it had just come, and begins anew unless it is said to save its work; work for more GPUs than a node has is a gang of
replicas that start together, one on each node.
"""
