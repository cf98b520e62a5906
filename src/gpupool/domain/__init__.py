"""Core concepts of the pool and their state machines.

Nothing here uses a clock, the network, a disk, a database or a thread. Everything is a frozen value or a pure function.
"""
