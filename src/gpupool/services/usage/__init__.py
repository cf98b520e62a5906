"""Usage: accounting, reports, statistics, history and events."""
