"""Ports of programs over WebSocket: each direction ends on its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_pool import LivePool, shell
from node_harness import eventually
from websockets.sync.client import ClientConnection, unix_connect

SERVER = """
import os, socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(server.getsockname()[1]))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    while True:
        near, _ = server.accept()
        with near:
            if near.recv(1) == b"s":
                near.sendall(b"first")
                near.shutdown(socket.SHUT_WR)
            data = b"".join(iter(lambda: near.recv(65536), b""))
            try:
                near.sendall(data)
            except OSError:
                pass
            with open(sys.argv[2] + ".new", "wb") as file:
                file.write(data)
            os.rename(sys.argv[2] + ".new", sys.argv[2])
"""


@pytest.fixture
def served(pool: LivePool, tmp_path: Path) -> Iterator[str]:
    """Yield the path of a port whose program answers at the end of its input; for ``s`` it first ends its own side."""
    port = tmp_path / "port"
    with pool.http() as http:
        made = http.post("/v1/workloads", json=shell(f"exec python3 -c '{SERVER}' {port} {tmp_path}/received")).json()
        eventually(port.exists, "the program listens")
        yield f"/v1/workloads/{made['id']}/ports/{port.read_text()}"
        http.post(f"/v1/workloads/{made['id']}/stop")


def dial(pool: LivePool, target: str) -> ClientConnection:
    return unix_connect(str(pool.socket), f"ws://pool{target}", compression=None)


def messages(connection: ClientConnection) -> list[bytes]:
    return [message for message in connection if isinstance(message, bytes)]


def test_answer_arrives_after_the_end_of_the_input(pool: LivePool, served: str) -> None:
    with dial(pool, served) as connection:
        connection.send(b"c" + b"0123" * 500_000)
        connection.send(b"")
        assert b"".join(messages(connection)) == b"0123" * 500_000
        assert connection.close_code == 1000


def test_input_continues_after_the_end_of_the_answer(pool: LivePool, served: str, tmp_path: Path) -> None:
    with dial(pool, f"{served}?half_close=true") as connection:
        connection.send(b"s")
        answer = iter(connection)
        assert b"".join(iter(lambda: next(answer), b"")) == b"first"
        connection.send(b"0123" * 500_000)
        connection.send(b"")
        assert list(answer) == []
    eventually((tmp_path / "received").exists, "the program has received the rest")
    assert (tmp_path / "received").read_bytes() == b"0123" * 500_000


def test_end_of_the_answer_closes_a_connection_without_half_close(pool: LivePool, served: str) -> None:
    with dial(pool, served) as connection:
        connection.send(b"s")
        assert b"".join(messages(connection)) == b"first"
        assert connection.close_code == 1000


def test_port_gets_the_end_of_a_client_that_disconnects(pool: LivePool, served: str, tmp_path: Path) -> None:
    with dial(pool, served) as connection:
        connection.send(b"cabc")
    eventually((tmp_path / "received").exists, "the program has got the end of its input")
    assert (tmp_path / "received").read_bytes() == b"abc"
