"""Submission of workloads."""
