"""The nouns of the pool and their state machines.

Nothing here touches a clock, the network, a disk, a database or a thread: everything is a frozen value or a
function from values to values.
"""
