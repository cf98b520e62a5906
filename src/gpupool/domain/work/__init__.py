"""Workloads: what was requested, its states, gangs, containers, files, rules and time windows."""
