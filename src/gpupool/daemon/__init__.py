"""The pool as processes of a machine: starting, keeping alive and stopping them, and their composition root.

``launch`` is what the command line calls; ``supervisor`` is the small program that keeps the node agent and the
control plane running; ``control_plane`` puts the rooms together into the process that serves the API.
"""
