"""Scheduled backups of the pool's database."""
