"""A client continues to work while the control plane is away and comes back."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_pool import LivePool, live_pool
from node_harness import eventually

from gpupool import Client
from gpupool.api.schemas.work.workloads import WorkloadView
from gpupool.client.transport.connection import ApiCall, PoolConnection
from gpupool.client.transport.endpoint import UnixEndpoint
from gpupool.client.transport.retries import RetryTimer
from gpupool.domain.errors import ErrorCode, GpupoolError

Answer = Callable[[socket.socket], None]


@pytest.fixture(scope="module")
def fragile() -> Iterator[LivePool]:
    """Yield a pool whose control plane a test restarts."""
    with live_pool() as made:
        yield made


def test_submissions_waits_and_followed_output_survive_a_restart(fragile: LivePool) -> None:
    with Client(fragile.socket) as client:
        marker = fragile.root / "go"
        line = f"echo one; while [ ! -e {marker} ]; do sleep 0.05; done; echo two"
        job = client.submit(["sh", "-c", line], fraction=0.1).wait_started(30)
        heard: list[bytes] = []
        seen: list[str] = []
        following = threading.Thread(target=lambda: heard.extend(c.data for c in job.logs(follow=True)), daemon=True)
        waiting = threading.Thread(target=lambda: seen.append(job.wait(60).view.state), daemon=True)
        following.start()
        waiting.start()
        eventually(lambda: heard, "the first line")
        fragile.down()
        later: list[str] = []
        submitting = threading.Thread(
            target=lambda: later.append(client.submit(["true"], fraction=0.1).id), daemon=True
        )
        submitting.start()
        fragile.up()
        marker.touch()
        for thread in (submitting, following, waiting):
            thread.join(60)
            assert not thread.is_alive()
        assert b"".join(heard) == b"one\ntwo\n"
        assert seen == ["succeeded"]
        assert client.wait(later[0], 30).view.state == "succeeded"


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Callable[..., tuple[PoolConnection, list[bytes]]]]:
    """Return a server that handles one connection after the other by a script."""
    servers: list[socket.socket] = []

    def make(*answers: Answer, retry_s: float = 30.0) -> tuple[PoolConnection, list[bytes]]:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        servers.append(listener)
        received: list[bytes] = []

        def run() -> None:
            for answer in answers:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    received.append(whole_request(connection))
                    answer(connection)

        threading.Thread(target=run, daemon=True).start()
        return PoolConnection(UnixEndpoint(str(tmp_path / "s")), retry_s), received

    yield make
    for server in servers:
        server.close()


def whole_request(connection: socket.socket) -> bytes:
    """Read a request with the body that it announces."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    announced = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(announced[0].split(b":")[1]) if announced else 0
    while len(body) < length:
        body += connection.recv(65536)
    return head + body


def hang_up(_connection: socket.socket) -> None:
    return


def reply(status: str, body: bytes) -> Answer:
    def answer(connection: socket.socket) -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)

    return answer


STOPPING = reply("503 -", b'{"error": {"code": "POOL_UNREACHABLE", "message": "about to stop", "hint": ""}}')


def test_repeatable_request_is_retried(scripted: Callable[..., tuple[PoolConnection, list[bytes]]]) -> None:
    connection, received = scripted(hang_up, STOPPING, reply("200 OK", b"{}"))
    assert connection.send(ApiCall("POST", "/x", json={"request_id": "r"}, repeatable=True)).body == {}
    assert len(received) == 3
    assert len(set(received)) == 1


def test_unrepeatable_request_is_not_retried(scripted: Callable[..., tuple[PoolConnection, list[bytes]]]) -> None:
    connection, received = scripted(hang_up, reply("200 OK", b"{}"))
    with pytest.raises(GpupoolError) as refused:
        connection.send(ApiCall("POST", "/x"))
    assert refused.value.code is ErrorCode.POOL_UNREACHABLE
    assert len(received) == 1


def test_retries_end_after_a_time_limit(scripted: Callable[..., tuple[PoolConnection, list[bytes]]]) -> None:
    connection, _ = scripted(*[hang_up] * 50, retry_s=0.2)
    with pytest.raises(GpupoolError) as refused:
        connection.send(ApiCall("GET", "/x", repeatable=True))
    assert refused.value.code is ErrorCode.POOL_UNREACHABLE
    assert RetryTimer(0).wait() is False


NODE_AWAY = reply("503 -", b'{"error": {"code": "NODE_UNREACHABLE", "message": "not known", "hint": ""}}')


def stream_of(*events: bytes) -> Answer:
    def answer(connection: socket.socket) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        connection.sendall(head + b"".join(events))

    return answer


def test_followed_stream_waits_for_unreachable_node(
    scripted: Callable[..., tuple[PoolConnection, list[bytes]]],
) -> None:
    first, last = b'id: 1\nevent: log\ndata: "a"\n\n', b'id: 2\nevent: end\ndata: "b"\n\n'
    connection, received = scripted(stream_of(first), NODE_AWAY, stream_of(last))
    assert [message.data for message in connection.stream_with_retry("/x", {})] == ["a", "b"]
    assert b"last-event-id: 1" in received[-1].lower()


def test_missing_node_is_reported_at_once(
    scripted: Callable[..., tuple[PoolConnection, list[bytes]]],
) -> None:
    connection, received = scripted(NODE_AWAY, stream_of())
    with pytest.raises(GpupoolError) as refused:
        list(connection.stream_with_retry("/x", {}))
    assert refused.value.code is ErrorCode.NODE_UNREACHABLE
    assert len(received) == 1


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (reply("500 -", b"<html>"), ErrorCode.INTERNAL),
        (reply("503 -", b""), ErrorCode.POOL_UNREACHABLE),
        (reply("400 -", b'{"error": {"code": "OF_TOMORROW", "message": "m", "hint": "h"}}'), ErrorCode.INTERNAL),
        (reply("404 -", b'{"error": {"code": "NOT_FOUND", "message": "m", "hint": "h"}}'), ErrorCode.NOT_FOUND),
        (reply("200 OK", b'{"id": 1}'), ErrorCode.INTERNAL),
    ],
)
def test_invalid_answers_are_errors(
    scripted: Callable[..., tuple[PoolConnection, list[bytes]]], answer: Answer, code: ErrorCode
) -> None:
    connection, _ = scripted(answer)
    with pytest.raises(GpupoolError) as refused:
        connection.ask(ApiCall("GET", "/x"), WorkloadView)
    assert refused.value.code is code


def test_socket_path_beyond_the_kernel_limit_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    (tmp_path / "short").symlink_to(deep)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "short" / "s"))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            reply("200 OK", b"{}")(connection)

    threading.Thread(target=serve, daemon=True).start()
    connection = PoolConnection(UnixEndpoint(str(deep / "s")))
    assert connection.send(ApiCall("GET", "/x")).body == {}
    connection.close()
    listener.close()


def test_idle_connection_is_reused_until_the_server_closes_it(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    served: list[int] = []

    def serve() -> None:
        for number, requests in enumerate((2, 1)):
            connection, _ = listener.accept()
            with connection:
                for _ in range(requests):
                    whole_request(connection)
                    served.append(number)
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    connection = PoolConnection(UnixEndpoint(str(tmp_path / "s")))
    connection.send(ApiCall("GET", "/x"))
    connection.send(ApiCall("GET", "/x"))
    eventually(lambda: connection._idle and select.select([connection._idle[0].sock], [], [], 0)[0], "the end")
    connection.send(ApiCall("POST", "/x"))
    serving.join(20)
    assert served == [0, 0, 1]
    connection.close()
    listener.close()
