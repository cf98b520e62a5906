"""A followed stream that is interrupted is distinguished from one that the pool ends."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpupool.client.transport.requests import StreamEvent, read_events

EVENT = b'id: 1\nevent: chunk\ndata: "a"\n\n'
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)


@contextmanager
def answering(body: bytes) -> Iterator[http.client.HTTPResponse]:
    """Return the answer of a server that sends this in chunks and disconnects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            near, _ = listener.accept()
            with near:
                near.recv(65536)
                near.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body)

        threading.Thread(target=serve, daemon=True).start()
        connection = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=20)
        connection.request("GET", "/")
        yield connection.getresponse()
        connection.close()


def test_complete_stream_has_ended() -> None:
    with answering(CHUNK + b"0\r\n\r\n") as response:
        assert list(read_events(response)) == [StreamEvent("1", "chunk", "a")]


@pytest.mark.parametrize("cut", [CHUNK, CHUNK[:-2], CHUNK + b"5\r\nid", CHUNK + b"1"])
def test_truncated_stream_is_broken(cut: bytes) -> None:
    with answering(cut) as response:
        messages = read_events(response)
        assert next(messages) == StreamEvent("1", "chunk", "a")
        with pytest.raises((OSError, http.client.HTTPException)):
            next(messages)
