"""Connections from the control plane to nodes. ``local``: one agent on this machine, over its unix socket."""
