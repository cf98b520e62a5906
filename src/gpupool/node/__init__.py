"""The code that runs on a GPU machine: the agent, its inventory and sharing modes, and a shepherd for each program.

``agent_main`` starts the agent. ``agent`` tracks the programs and serves requests on a socket. ``runners`` start
programs through the ``spawner``. A ``shepherd`` outlives the agent and supervises one program. State is kept in files:
see ``host/records.py``.
"""
