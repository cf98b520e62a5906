"""Commands for users, projects, fairness, usage and the audit record."""
