"""Workloads: requests, states, gangs, containers, files, rules and time windows."""
