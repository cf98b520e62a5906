"""Fairness: fair shares of departments and projects, quotas of GPU models, and the order inside a project."""
