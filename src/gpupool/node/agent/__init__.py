"""The agent of a node: the programs that run here, and the requests of the control plane."""
