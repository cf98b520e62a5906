"""Run a program from the terminal in a few milliseconds.

No module here imports typing, dataclasses, asyncio, subprocess, socket, http or a third-party package at run time. Each
of them takes as long as all other steps to the pool together.
"""
