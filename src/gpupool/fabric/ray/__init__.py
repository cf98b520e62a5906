"""Many machines over Ray: the transport from the control plane to agents of other machines.

``node_process`` runs Ray's own processes on a machine. ``bridge`` is the only process of the pool that is a client of
Ray. For each machine it keeps a ``relay`` (a stateless actor there) and a unix socket here. A connection to the socket
is forwarded through the relay to that machine's agent (``tunnel``). ``BridgeDirectory`` lists the sockets for
the control plane, which never imports Ray. These processes make no decisions and may be killed at any time.
"""
