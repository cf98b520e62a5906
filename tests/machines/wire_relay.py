"""Connect a machine in a network namespace to agents of others: `python wire_relay.py RELAY.json`, run there.

The file says where to listen: ``{"serve": ["10.0.0.1", 7000, "/path/agent.sock"], "reach": {"/path/n1.sock":
["10.0.0.2", 7000]}}``. Bytes pass from a unix socket to the other machine over TCP, and there to the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

PIECE = 256 << 10
CONNECT_S = 3.0
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()


def pass_on(connect: Callable[[], Awaitable[Ends]]) -> Callable[..., Awaitable[None]]:
    """Return what serves a connection by making another and passing bytes both ways until one side hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            async with asyncio.timeout(CONNECT_S):
                far_reader, far_writer = await connect()
            writers.append(far_writer)
            ways = [asyncio.create_task(carry(*ends)) for ends in ((reader, far_writer), (far_reader, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
        except (OSError, TimeoutError):
            pass
        finally:
            for end in writers:
                end.transport.abort()

    return serve


def far_away(host: str, port: int) -> Callable[[], Awaitable[Ends]]:
    async def connect() -> Ends:
        reader, writer = await asyncio.open_connection(host, port)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)
        return reader, writer

    return connect


async def main(options: dict[str, dict[str, list[str]]]) -> None:
    host, port, agent = options["serve"]
    await asyncio.start_server(pass_on(lambda: asyncio.open_unix_connection(agent)), host, int(port))
    for near, (far, far_port) in options["reach"].items():
        await asyncio.start_unix_server(pass_on(far_away(far, int(far_port))), near)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
