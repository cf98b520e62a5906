"""How the control plane reaches nodes. ``local``: one node, over the agent's unix socket."""
