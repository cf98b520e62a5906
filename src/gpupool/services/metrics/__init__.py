"""Metrics for Prometheus: their catalogue and their current values. ``api`` formats them as text."""
