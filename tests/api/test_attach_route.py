"""Terminals over WebSocket: bytes pass unchanged, refusals say why."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from fastapi import FastAPI
from live_pool import LivePool, shell
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect, unix_connect

from gpupool.api.app import create_app
from gpupool.client.transport.attach import Attachment
from gpupool.client.transport.endpoint import TlsEndpoint
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Actor, Role
from gpupool.domain.protocol import frames

Dial = Callable[..., ClientConnection]


@pytest.fixture
def hold() -> Iterator[ExitStack]:
    """Yield connections that are closed after the test."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def dialling(pool: LivePool, hold: ExitStack) -> Dial:
    def dial_local(target: str, **options: Any) -> ClientConnection:
        connection: ClientConnection = hold.enter_context(
            unix_connect(str(pool.socket), f"ws://pool{target}", compression=None, **options)
        )
        return connection

    return dial_local


def attached(pool: LivePool, dialling: Dial, line: str, **changes: Any) -> tuple[str, ClientConnection]:
    with pool.http() as http:
        body = shell(line, stdin=True, client_bound=True, kind="run", **changes)
        made = http.post("/v1/workloads", json=body, params={"wait": "started"}).json()
    return made["id"], dialling(f"/v1/workloads/{made['id']}/attach")


def all_frames(connection: ClientConnection) -> list[tuple[int, bytes]]:
    found, buffer = [], bytearray()
    for message in connection:
        assert isinstance(message, bytes)
        buffer += message
        found += frames.decode(buffer)
    assert buffer == b""
    return found


def hello(connection: ClientConnection) -> None:
    connection.send(frames.encode(frames.HELLO, json.dumps({"version": 1, "stdin": True}).encode()))


def until_output(connection: ClientConnection) -> None:
    buffer = bytearray()
    while not any(kind == frames.STDOUT for kind, _ in frames.decode(buffer)):
        message = connection.recv()
        assert isinstance(message, bytes)
        buffer += message


def test_relay_transfers_input_and_output(pool: LivePool, dialling: Dial) -> None:
    _, connection = attached(pool, dialling, "cat; exit 5")
    hello(connection)
    sent = bytes(range(256)) * 4096
    for at in range(0, len(sent), 100_000):
        connection.send(frames.encode(frames.STDIN, sent[at : at + 100_000]))
    connection.send(frames.encode(frames.STDIN_EOF))
    heard = all_frames(connection)
    assert b"".join(payload for kind, payload in heard if kind == frames.STDOUT) == sent
    assert heard[-1][0] == frames.EXIT
    assert json.loads(heard[-1][1])["status"] == 5
    assert connection.close_code == 1000


def test_program_echoes_more_than_all_buffers_hold(pool: LivePool, dialling: Dial) -> None:
    _, connection = attached(pool, dialling, "cat")
    pipes = Attachment(connection)
    pipes.hello()

    def send() -> None:
        for _ in range(100):
            pipes.send(frames.STDIN, bytes(200_000))
        pipes.send(frames.STDIN_EOF)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    heard = sum(len(payload) for kind, payload in pipes if kind == frames.STDOUT)
    sending.join()
    assert heard == 100 * 200_000


def send_without_end(connection: ClientConnection) -> None:
    while True:
        connection.send(frames.encode(frames.STDIN, bytes(200_000)))


def test_end_of_a_program_that_reads_no_input_is_received(pool: LivePool, dialling: Dial) -> None:
    for _ in range(5):
        _, connection = attached(pool, dialling, "echo no input >&2; exit 3")
        hello(connection)
        with pytest.raises(ConnectionClosed):
            send_without_end(connection)
        heard = all_frames(connection)
        assert (frames.STDERR, b"no input\n") in heard
        assert heard[-1][0] == frames.EXIT
        assert json.loads(heard[-1][1])["status"] == 3
        assert connection.close_code == 1000


def test_disconnect_ends_a_bound_program(pool: LivePool, dialling: Dial) -> None:
    workload, connection = attached(pool, dialling, "echo up; sleep 60")
    hello(connection)
    until_output(connection)
    connection.close()
    with pool.http() as http:
        view = http.get(f"/v1/workloads/{workload}/wait").json()
    assert view["state"] in {"stopped", "failed"}
    assert view["reason"]["code"] == "CLIENT_GONE"


def refusal(connection: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as closed:
        connection.recv()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason.partition(":")[0]


def test_refusals_close_with_the_code(pool: LivePool, dialling: Dial) -> None:
    assert refusal(dialling("/v1/workloads/nothing-like-it/attach")) == (4404, "UNKNOWN_WORKLOAD")
    with pool.http() as http:
        made = http.post("/v1/workloads", json=shell("true")).json()
        http.get(f"/v1/workloads/{made['id']}/wait")
    assert refusal(dialling(f"/v1/workloads/{made['id']}/attach")) == (4409, "WRONG_STATE")
    assert refusal(dialling(f"/v1/workloads/{made['id']}/attach?index=7")) == (4404, "NOT_FOUND")


def test_token_is_required_over_tls(pool: LivePool, dialling: Dial, hold: ExitStack) -> None:
    workload, _ = attached(pool, dialling, "echo up; sleep 60")
    url = f"wss{pool.url.removeprefix('https')}/v1/workloads/{workload}/attach"
    context = TlsEndpoint(pool.url, "", ca_file=str(pool.tls.certificate)).context()

    def dial(token: str | None) -> ClientConnection:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        found: ClientConnection = hold.enter_context(connect(url, ssl=context, additional_headers=headers, proxy=None))
        return found

    assert pool.app is not None
    assert refusal(dial(None)) == (4401, "UNAUTHENTICATED")
    assert refusal(dial("gpt_0_wrong")) == (4401, "UNAUTHENTICATED")
    pool.app.state.attempts.forget("127.0.0.1")
    with pool.http() as http:
        http.put("/v1/users/mallory", json={"role": "member"})
    assert refusal(dial(pool.token(user="mallory")["secret"])) == (4403, "FORBIDDEN")
    second = dial(pool.token()["secret"])
    hello(second)
    until_output(second)
    second.send(frames.encode(frames.SIGNAL, bytes([15])))
    assert all_frames(second)[-1][0] == frames.EXIT


def test_other_origins_are_refused(pool: LivePool, dialling: Dial) -> None:
    with pytest.raises(InvalidStatus) as refused:
        dialling("/v1/workloads/x/attach", origin="https://elsewhere.example")
    assert refused.value.response.status_code == 403
    assert refused.value.response.body is not None
    assert json.loads(refused.value.response.body)["error"]["code"] == "FORBIDDEN"
    assert refusal(dialling("/v1/workloads/x/attach", origin="http://pool"))[0] == 4404


def test_text_message_is_refused(pool: LivePool, dialling: Dial) -> None:
    _, connection = attached(pool, dialling, "sleep 60")
    connection.send("text")
    assert refusal(connection) == (1003, "INVALID_REQUEST")


class Stream:
    """An attach stream of a test's making."""

    def __init__(self, reads: Callable[[], AsyncIterator[bytes]]) -> None:
        self.reads = reads()
        self.written = bytearray()
        self.closed = False

    async def read(self, limit: int) -> bytes:
        return await anext(self.reads, b"")

    async def write(self, data: bytes) -> None:
        self.written += data

    async def close(self) -> None:
        self.closed = True


class Standin:
    """Services of which only what an attachment needs is there."""

    def __init__(self, stream: Stream) -> None:
        self.access = self.workloads = self.output = self
        self.stream = stream

    async def actor_for_token(self, secret: str) -> Actor:
        return Actor("a", Role.ADMIN, f"token {secret}")

    async def attach(self, actor: Actor, ref: str, index: int) -> Stream:
        if ref == "broken":
            raise RuntimeError("a secret detail")
        return self.stream


def app_with(stream: Stream) -> FastAPI:
    return create_app(Standin(stream))  # type: ignore[arg-type]


def dial(app: FastAPI, ref: str = "x") -> Any:
    return TestClient(app).websocket_connect(f"/v1/workloads/{ref}/attach", headers={"authorization": "Bearer t"})


def test_end_of_stream_is_a_normal_close_and_releases_the_stream() -> None:
    async def reads() -> AsyncIterator[bytes]:
        yield b"abc"
        yield b"def"

    stream = Stream(reads)
    with dial(app_with(stream)) as socket:
        assert socket.receive_bytes() + socket.receive_bytes() == b"abcdef"
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_bytes()
    assert closed.value.code == 1000
    assert stream.closed


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (
            GpupoolError(ErrorCode.NODE_UNREACHABLE, "n1 does not answer."),
            4503,
            "NODE_UNREACHABLE: n1 does not answer.",
        ),
        (RuntimeError("a secret detail"), 4500, "INTERNAL"),
    ],
)
def test_broken_stream_closes_with_its_code(error: Exception, code: int, reason: str) -> None:
    async def reads() -> AsyncIterator[bytes]:
        yield b"abc"
        raise error

    stream = Stream(reads)
    with dial(app_with(stream)) as socket:
        socket.receive_bytes()
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_bytes()
    assert closed.value.code == code
    assert (closed.value.reason or "").startswith(reason)
    assert "secret" not in (closed.value.reason or "")
    assert stream.closed


def test_unexpected_error_before_the_stream_is_internal() -> None:
    async def reads() -> AsyncIterator[bytes]:
        yield b""

    with dial(app_with(Stream(reads)), "broken") as socket, pytest.raises(WebSocketDisconnect) as closed:
        socket.receive_bytes()
    assert closed.value.code == 4500


def test_stopping_server_closes_connection_and_stream() -> None:
    async def reads() -> AsyncIterator[bytes]:
        app.state.closing.set()
        await asyncio.sleep(60)
        yield b"never"

    stream = Stream(reads)
    app = app_with(stream)
    with dial(app) as socket, pytest.raises(WebSocketDisconnect) as closed:
        socket.receive_bytes()
    assert closed.value.code == 1001
    assert stream.closed
