"""Checks of GPUs by doing work on them: ``python -m gpupool.verify`` on the node itself.

It needs Python's standard library and the NVIDIA driver only. ``__main__`` finds the GPUs (``nvml``), asks for their
state (``cards``, ``node_checks``) and starts a child process for each check that uses CUDA (``children``, ``child``),
because a broken GPU can hang or end a process. ``results`` has the report, ``schema`` its JSON Schema, ``table`` its
text.
"""
