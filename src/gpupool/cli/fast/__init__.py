"""Running a program from the terminal in a few milliseconds.

Nothing here imports typing, dataclasses, asyncio, subprocess, socket, http or any third party: each of those costs as
much as the rest of the way to the pool together.
"""
