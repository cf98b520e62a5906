"""TLS connections that one thread reads while another writes."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from websockets.asyncio.server import ServerConnection, serve

from gpupool.api.server.tls import CertificateFiles, ensure_self_signed
from gpupool.client.transport.attach import attach
from gpupool.client.transport.endpoint import TlsEndpoint
from gpupool.client.transport.tls_socket import DuplexTlsSocket
from gpupool.domain.protocol import frames

TICKETS = 50  # a usual server sends two: each is a moment in which a simultaneous write fails


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    folder = tmp_path_factory.mktemp("tls")
    files = CertificateFiles(folder / "certificate.pem", folder / "key.pem")
    ensure_self_signed(files, "127.0.0.1")
    return files


def server_context(files: CertificateFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.num_tickets = TICKETS
    return context


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


@pytest.fixture
def echo_endpoint(files: CertificateFiles) -> Iterator[TlsEndpoint]:
    """Yield the endpoint of a WebSocket server that returns each message."""
    loop, started, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    ports: list[int] = []

    async def run() -> None:
        async with serve(echo, "127.0.0.1", 0, ssl=server_context(files)) as server:
            ports.append(next(iter(server.sockets)).getsockname()[1])
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert started.wait(20)
    yield TlsEndpoint(f"https://127.0.0.1:{ports[0]}", "a token", certificate=files.certificate.read_text())
    loop.call_soon_threadsafe(stop.set)
    thread.join(20)
    loop.close()


def test_attachments_open_while_session_tickets_arrive(echo_endpoint: TlsEndpoint) -> None:
    def exchange(_: int) -> tuple[int, bytes]:
        with attach(echo_endpoint, "work") as attached:
            attached.send(frames.STDOUT, b"hello")
            return next(iter(attached))

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(exchange, range(200))) == {(frames.STDOUT, b"hello")}


@contextmanager
def connected(files: CertificateFiles) -> Iterator[tuple[DuplexTlsSocket, ssl.SSLSocket]]:
    """Yield both ends of a TLS connection: the socket under test, and an ordinary one."""
    ours, theirs = socket.socketpair()
    accepted: list[ssl.SSLSocket] = []
    server = server_context(files)
    thread = threading.Thread(target=lambda: accepted.append(server.wrap_socket(theirs, server_side=True)))
    thread.start()
    endpoint = TlsEndpoint("https://127.0.0.1", "a token", certificate=files.certificate.read_text())
    client = endpoint.context().wrap_socket(ours, server_hostname="127.0.0.1")
    thread.join(20)
    assert isinstance(client, DuplexTlsSocket)
    with client, accepted[0] as peer:
        yield client, peer


def test_both_directions_carry_all_data_at_once(files: CertificateFiles) -> None:
    sent = hashlib.shake_128(b"data").digest(8 << 20)
    with connected(files) as (client, peer):

        def return_all() -> None:
            while data := peer.recv(1 << 16):
                peer.sendall(data)

        threads = [threading.Thread(target=return_all), threading.Thread(target=client.sendall, args=(sent,))]
        for thread in threads:
            thread.start()
        received = bytearray()
        while len(received) < len(sent):
            received += client.recv(1 << 16)
        client.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(20)
        assert bytes(received) == sent


def test_timeouts_are_those_of_ordinary_sockets(files: CertificateFiles) -> None:
    with connected(files) as (client, peer):
        assert client.gettimeout() is None
        client.settimeout(0.05)
        assert client.gettimeout() == 0.05
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            client.recv(10)
        assert time.monotonic() - started >= 0.05
        with pytest.raises(TimeoutError):
            client.sendall(bytes(64 << 20))  # the other end does not read
        client.settimeout(0)
        with pytest.raises(ssl.SSLWantReadError):
            client.recv(10)
        peer.sendall(b"line\n")
        client.settimeout(20)
        with client.makefile("rb") as file:
            assert file.readline() == b"line\n"


@pytest.mark.parametrize("ending", ["peer closes", "shutdown here"])
def test_waiting_read_ends_with_the_connection(files: CertificateFiles, ending: str) -> None:
    with connected(files) as (client, peer):
        received: list[bytes] = []
        thread = threading.Thread(target=lambda: received.append(client.recv(10)))
        thread.start()
        time.sleep(0.05)  # most runs: it waits now; the result is the same otherwise
        if ending == "peer closes":
            peer.close()
        else:
            client.shutdown(socket.SHUT_RDWR)
        thread.join(20)
        assert received == [b""]
