"""Runners: ways to start a supervised program. ``process`` forks it on the machine itself."""
