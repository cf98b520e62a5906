"""Connections to a pool: requests, streams and uploads."""
