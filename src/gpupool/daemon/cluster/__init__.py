"""A machine of a cluster: joining, heads, leadership and standby."""
