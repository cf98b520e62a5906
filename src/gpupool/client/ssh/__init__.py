"""SSH to workloads: an SSH server on the user's machine whose sessions are programs of the pool.

``ssh`` starts it as its ProxyCommand (``server.serve``). The server speaks on standard input and output only, so it
needs no authentication: only the user can write to the pipe. A session becomes a program on the workload's GPUs
(kind exec), a forwarded port becomes a port connection of the pool. Nothing is installed or opened in the workload.

``asyncssh`` comes with the extra ``gpupool[ssh]``; only ``server``, ``sessions`` and ``ports`` import it.
"""
