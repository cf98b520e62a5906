"""Eviction: which running replicas are preempted for which waiting ones, by which rule, and at the lowest cost."""
