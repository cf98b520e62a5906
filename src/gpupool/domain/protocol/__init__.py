"""Messages between processes of the pool, and the rules that fence outdated ones."""
