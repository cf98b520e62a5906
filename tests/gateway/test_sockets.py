"""Options of sockets: asyncio sets TCP_NODELAY only on some, and without it parts of a response wait for 40 ms."""

from __future__ import annotations

import asyncio
import socket

from gpupool.gateway.client_connection import ClientConnection
from gpupool.gateway.forwarding import Networks
from gpupool.gateway.hub import Hub
from gpupool.gateway.replica_connection import ReplicaConnection
from gpupool.gateway.routing import ReplicaLoad

OPTIONS = ((socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.SOL_SOCKET, socket.SO_KEEPALIVE))


def test_connections_on_both_sides_send_at_once_and_notice_lost_machines() -> None:
    async def options_of_both() -> list[int]:
        loop = asyncio.get_running_loop()
        hub = Hub(loop, Networks(), 10)
        listening = socket.create_server(("127.0.0.1", 0))  # names no protocol, as asyncio would need it
        server = await loop.create_server(lambda: ClientConnection(hub), sock=listening)
        host, port = listening.getsockname()
        replica = ReplicaLoad("r", f"{host}:{port}", host, port)
        transport, _ = await loop.create_connection(lambda: ReplicaConnection(replica), host, port)
        while not hub.connections:  # noqa: ASYNC110 - the event loop accepts in one of its next steps
            await asyncio.sleep(0)
        (client,) = hub.connections
        assert isinstance(client, ClientConnection)
        found = [
            each.get_extra_info("socket").getsockopt(*option)
            for each in (transport, client.transport)
            for option in OPTIONS
        ]
        transport.abort()
        server.close()
        return found

    assert asyncio.run(options_of_both()) == [1, 1, 1, 1]
