"""A program's stream through the pool: a client that waits for more is informed of its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from websockets.sync.server import ServerConnection, unix_serve

from gpupool.cli.transport.remote import relay_local

PATIENCE_S = 20.0


@contextmanager
def served(path: Path, handle: Callable[[ServerConnection], None]) -> Iterator[str]:
    with unix_serve(handle, str(path)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield str(path)
        finally:
            server.shutdown()
            thread.join(PATIENCE_S)


def test_end_of_stream_is_noticed_without_input(tmp_path: Path) -> None:
    def talk(connection: ServerConnection) -> None:
        connection.send(connection.recv())

    with served(tmp_path / "api.sock", talk) as path:
        sock = relay_local(path, "wone", 0)
        sock.settimeout(PATIENCE_S)
        sock.sendall(b"hello")
        heard = b""
        while data := sock.recv(100):
            heard += data
        assert heard == b"hello"
        sock.close()


def test_disconnect_is_noticed_at_the_other_end(tmp_path: Path) -> None:
    heard: list[bytes] = []
    over = threading.Event()

    def listen(connection: ServerConnection) -> None:
        heard.extend(bytes(message) for message in connection if isinstance(message, bytes))
        over.set()

    with served(tmp_path / "api.sock", listen) as path:
        sock = relay_local(path, "wone", 0)
        sock.sendall(b"last words")
        sock.close()
        assert over.wait(PATIENCE_S)
    assert b"".join(heard) == b"last words"
