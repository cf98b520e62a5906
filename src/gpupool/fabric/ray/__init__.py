"""Many machines over Ray: how bytes get from the control plane to the agent of another machine.

``node_process`` runs Ray's own processes on a machine, ``bridge`` is the one process of the pool that is a client of
Ray. For each machine it keeps a ``relay`` (an actor there, without state) and a unix socket here; whoever connects to
the socket is joined, through the relay, with that machine's agent (``tunnel``). ``directory`` tells the control plane
which sockets there are. Nothing here decides anything: each of these processes may be killed at any time.

The control plane imports ``directory`` alone, never Ray.
"""
