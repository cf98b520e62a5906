"""Connections to the control plane: requests, retries, failover and TLS pinning."""
