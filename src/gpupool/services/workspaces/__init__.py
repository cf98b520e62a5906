"""Workspaces: creation, sessions, copies, and the measurement of their disk."""
