"""Enforced slices: the share library in each program limits memory and time, together with the arbiter."""
