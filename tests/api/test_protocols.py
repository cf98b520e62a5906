"""A WebSocket's application notices that its client is gone: by a close, an ended connection, or silence."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from typing import Any

import pytest
import uvicorn

from gpupool.api.server.protocols import PeerWebSocketProtocol

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: pool\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@contextmanager
def served(ping_s: float) -> Iterator[tuple[int, Queue[int]]]:
    """Yield a port, and the close codes of its clients; a client that answers no ping for some time is closed."""
    codes: Queue[int] = Queue()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            pass
        codes.put(message["code"])

    config = uvicorn.Config(
        application,
        ws=PeerWebSocketProtocol,
        lifespan="off",
        log_level="error",
        ws_ping_interval=ping_s,
        ws_ping_timeout=ping_s,
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield listener.getsockname()[1], codes
        server.should_exit = True
        thread.join()


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def say_nothing(connection: socket.socket) -> None:
    time.sleep(0.5)


def say_goodbye(connection: socket.socket) -> None:
    connection.sendall(b"\x88\x82\0\0\0\0\x03\xe8")  # close, masked with zeros: 1000


@pytest.mark.parametrize(
    ("end", "code", "ping_s"),
    [(say_goodbye, 1000, 60), (close, 1005, 60), (reset, 1005, 60), (say_nothing, 1006, 0.2)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_close_code_names_the_error(end: Callable[[socket.socket], None], code: int, ping_s: float) -> None:
    with served(ping_s) as (port, codes), socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(HANDSHAKE)
        assert connection.recv(4096).startswith(b"HTTP/1.1 101")
        end(connection)
        assert codes.get(timeout=20) == code
