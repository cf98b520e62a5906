"""The HTTP server: listeners, connection limits, TLS and protocols."""
