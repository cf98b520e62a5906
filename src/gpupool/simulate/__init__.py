"""The simulator: the pool's own scheduler over a trace of work, in virtual time.

Nothing here uses a clock, a network or a thread; only `files` reads a disk. `values` are jobs and their outcomes,
`rows` reads tables with limits, `traces` knows the formats of work, `clusters` those of nodes, `load` changes the load
of a trace, `engine` drives `scheduling.Scheduler` from event to event, `stranded` measures free capacity that is of no
use, and `metrics` sums up. As in the pool, evicted work ends after its grace period, is queued like new work, and
starts from the beginning unless it saves its state. Work for more GPUs than a node has is a gang of replicas, one on
each node.
"""
