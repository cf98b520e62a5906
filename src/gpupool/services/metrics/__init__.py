"""What Prometheus reads: the catalogue of metrics, and their values now. Plain values; ``api`` writes them as text."""
