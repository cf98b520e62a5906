"""The processes of the pool on a machine: starting, supervising and stopping them, and the composition root.

The command line calls ``process.launch``. ``supervisor`` is the small program that keeps the node agent and the control
plane running. ``control_plane`` assembles the packages into the process that serves the API.
"""
