"""Workloads: requests, states, gangs, programs, rules and time windows."""
