"""What runs on a GPU machine: the agent, its inventory and sharing modes, and a shepherd beside every program.

``agent_main`` starts the agent; ``agent_server`` answers on its socket; ``agent`` keeps the books; ``runners`` bring
programs into being through the ``spawner``; ``shepherd`` outlives them all. Files are the truth: see ``record``.
"""
