"""How a WebSocket's application hears that its client is gone: said, ended at the other end, or silent."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import pytest
import uvicorn

from gpupool.api.protocols import PeerWebSocketProtocol

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: pool\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.fixture
def served() -> Iterator[tuple[int, Queue[int]]]:
    """A port, and the codes with which those who connected to it went."""
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
        ws_ping_interval=0.2,
        ws_ping_timeout=0.2,
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
    ("end", "code"),
    [(say_goodbye, 1000), (close, 1005), (reset, 1005), (say_nothing, 1006)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_code_says_how_a_connection_ended(
    served: tuple[int, Queue[int]], end: Callable[[socket.socket], None], code: int
) -> None:
    port, codes = served
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(HANDSHAKE)
        assert connection.recv(4096).startswith(b"HTTP/1.1 101")
        end(connection)
        assert codes.get(timeout=20) == code
