"""The scheduler: arrays in, decisions out, and a reason for every wait.

Nothing here touches a clock, the network, a disk, a database or a thread. `cluster` holds the nodes as arrays, `undo`
lets an action try a move and take it back, `placement` finds a node for one replica, `ledger` counts what projects and
users hold, `queue` orders what waits, `session` with `allocate`, `reclaim` and `reserve` are the actions of one cycle
(`cycle`), and `scheduler` keeps all of it up to date from one event to the next. `explain`, `estimate` and `feasible`
answer people.
"""
