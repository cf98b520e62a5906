"""A program's stream, and a port that leads to it, are reached through whichever head leads."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from pool_heads import Head
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from gpupool import Client
from gpupool.cli.transport.remote import RemoteTransport
from gpupool.client.discovery import Remote
from gpupool.client.files.port_forward import Forwarder
from gpupool.client.transport import heads
from gpupool.client.transport.endpoint import TlsEndpoint
from gpupool.client.transport.heads import HeadList, KnownHead
from gpupool.client.transport.tls_socket import DuplexTlsSocket
from gpupool.domain.protocol import frames

TOKEN = "gpt_a_token"


def echo(connection: ServerConnection) -> None:
    for message in connection:
        connection.send(message)


def health(connection: ServerConnection, request: Request) -> Response | None:
    """Answer who leads, and accept a WebSocket with the right token at all other addresses."""
    if request.path == "/v1/health":
        body = json.dumps({"status": "ok", "term": 2}).encode()
        return Response(200, "OK", Headers({"content-length": str(len(body)), "connection": "close"}), body)
    if request.headers.get("authorization") != f"Bearer {TOKEN}":
        return connection.respond(401, "no token\n")
    return None


@contextmanager
def leading(head: Head) -> Iterator[KnownHead]:
    """Yield a leading server with the certificate of a head; it sends back the input of a program."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(head.files.certificate, head.files.key)
    context.sslsocket_class = DuplexTlsSocket  # the server reads in one thread and writes in another
    with serve(echo, "127.0.0.1", 0, ssl=context, process_request=health) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield KnownHead(head.name, f"https://127.0.0.1:{server.socket.getsockname()[1]}", head.certificate)
        finally:
            server.shutdown()
            thread.join(20)


@pytest.fixture(params=["waits", "dead"])
def login(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    """Return a login at a head that no longer leads, with the other head learned."""
    for name in [name for name in os.environ if name.startswith("GPUPOOL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    first, second = Head(tmp_path, "h1", None), Head(tmp_path, "h2", None)
    if request.param == "dead":
        first.die()
    made = Remote(first.url, TOKEN, None, first.certificate, login=True)
    with leading(second) as other:
        known = (KnownHead("h1", first.url, first.certificate), other)
        heads.save_heads(heads.heads_file(TlsEndpoint.from_remote(made)), HeadList(known, 2e9, first.url))
        yield made
    for head in (first, second):
        head.close()


def test_terminal_uses_the_new_leader(login: Remote) -> None:
    with closing(RemoteTransport(login).relay("wone", 0)) as sock:
        sock.settimeout(20)
        sock.sendall(b"hello")
        assert sock.recv(100) == b"hello"


def test_attachment_uses_the_new_leader(login: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupool.client.transport.endpoint.find_pool", lambda: login)
    with Client() as client, client.attach("wone") as attached:
        attached.send(frames.STDOUT, b"hello")
        assert next(iter(attached)) == (frames.STDOUT, b"hello")


def test_forwarded_port_uses_the_new_leader(login: Remote) -> None:
    async def run() -> bytes:
        said: list[str] = []
        forwarder = Forwarder(TlsEndpoint.from_remote(login), "wone", 0, said.append)
        ((port, server),) = await forwarder.listen([(0, 80)])
        async with server:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello")
            heard = await asyncio.wait_for(reader.read(100), 20)
            writer.close()
        assert said == []
        return heard

    assert asyncio.run(run()) == b"hello"
