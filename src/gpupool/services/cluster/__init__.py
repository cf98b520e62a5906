"""The machines of a cluster: join tokens, membership and heads."""
