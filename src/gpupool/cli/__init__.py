"""The command line.

``entry.main`` is the program. ``gpupool run`` and ``gpupool client`` take the path in ``fast/``, which imports almost
nothing; every other command, and every call that needs help or an explanation, goes to the Typer program in ``app``:
one module per family in ``commands/``, what people see in ``render/``.
"""
