"""The command line.

``entry.main`` is the program. ``gpupool run`` and ``gpupool client`` take the path in ``fast/``, which imports almost
nothing. Every other command, and every call with help or a usage error, goes to the Typer program in ``app``.
``commands/`` has one module for each family of commands, ``render/`` formats the output.
"""
