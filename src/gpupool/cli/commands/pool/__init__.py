"""Commands for the pool: start, stop, status, backup, policy, login and simulation."""
