"""Answers about waiting work: its reason, its place in the queue, dry runs and estimates."""
