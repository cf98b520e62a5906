"""The sockets, the certificate, and what goes wrong with either."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography import x509
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from gpupool.api.attempts import FailedAttempts
from gpupool.api.errors import install
from gpupool.api.listeners import listen_tcp, listen_unix
from gpupool.api.middleware import BodyLimit, InternalErrors
from gpupool.api.server import Bound, ListenConfig, serve
from gpupool.api.tls import CertificateFiles, ensure_self_signed, fingerprint, server_context
from gpupool.domain.errors import ErrorCode, GpupoolError


def small_app() -> FastAPI:
    app = FastAPI()
    app.state.closing = asyncio.Event()
    install(app)
    app.add_middleware(BodyLimit, limit=1000)
    app.add_middleware(InternalErrors)

    @app.get("/peer")
    async def peer(request: Request) -> dict[str, Any]:
        return {"extensions": {k: v for k, v in request.scope.get("extensions", {}).items() if "gpupool" in k}}

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("a secret detail")

    @app.post("/size")
    async def size(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    return app


def served(folder: Path, ask: Callable[[Bound], None], **options: Any) -> Bound:
    """Serve a small application while ``ask`` runs in a thread of its own."""
    bound: list[Bound] = []

    async def run() -> None:
        stop, ready = asyncio.Event(), asyncio.Event()
        serving = asyncio.create_task(
            serve(
                small_app(),
                socket_path=folder / "api.sock",
                stop=stop,
                ready=lambda where: (bound.append(where), ready.set()),
                **options,
            )
        )
        await asyncio.wait({serving, asyncio.create_task(ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if not serving.done():
                await asyncio.to_thread(ask, bound[0])
        finally:
            stop.set()
            await serving

    asyncio.run(run())
    return bound[0]


def local(bound: Bound) -> httpx2.Client:
    return httpx2.Client(transport=httpx2.HTTPTransport(uds=str(bound.socket_path)), base_url="http://pool", timeout=60)


def test_the_socket_has_its_mode_and_goes_with_the_server(tmp_path: Path) -> None:
    def ask(bound: Bound) -> None:
        assert stat.S_IMODE(bound.socket_path.stat().st_mode) == 0o660
        with local(bound) as http:
            peer = http.get("/peer", headers={"gpupool.peer_uid": "0"}).json()["extensions"]
        import os

        assert peer == {"gpupool.peer_uid": os.getuid()}

    served(tmp_path, ask, socket_mode=0o660)
    assert list(tmp_path.iterdir()) == []


def test_a_socket_left_behind_is_replaced_and_a_successors_is_not_removed(tmp_path: Path) -> None:
    socket.socket(socket.AF_UNIX).bind(str(tmp_path / "api.sock"))
    successor: list[socket.socket] = []

    def ask(bound: Bound) -> None:
        with local(bound) as http:
            assert http.get("/peer").status_code == 200
        successor.append(listen_unix(bound.socket_path, 0o600))

    served(tmp_path, ask)
    assert (tmp_path / "api.sock").exists()
    successor[0].close()


def test_a_path_beyond_the_kernels_limit_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    listener = listen_unix(deep / "api.sock", 0o600)
    assert stat.S_ISSOCK((deep / "api.sock").stat().st_mode)
    listener.close()


def test_no_folder_for_the_socket(tmp_path: Path) -> None:
    with pytest.raises(GpupoolError) as refused:
        served(tmp_path / "gone", lambda _: None)
    assert refused.value.code is ErrorCode.POOL_START_FAILED


def test_an_error_nobody_foresaw_says_only_its_number(tmp_path: Path) -> None:
    def ask(bound: Bound) -> None:
        with local(bound) as http:
            answer = http.get("/broken")
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "INTERNAL"
            assert "secret" not in answer.text
            assert http.get("/peer").status_code == 200

    served(tmp_path, ask)


def test_bodies_and_heads_are_bounded(tmp_path: Path) -> None:
    def ask(bound: Bound) -> None:
        with local(bound) as http:
            assert http.post("/size", content=b"x" * 1000).text == "1000"
            assert http.post("/size", content=b"x" * 1001).status_code == 413
            assert http.post("/size", content=iter([b"x" * 600, b"x" * 401])).status_code == 413
            assert http.post("/size", content=iter([b"x" * 600, b"x" * 400])).text == "1000"
            assert http.get("/peer", headers={"x": "y" * 70_000}).status_code == 400
            assert http.get("/peer?" + "y" * 64_000, headers={"x": "y" * 2000}).status_code == 400

    served(tmp_path, ask)


def test_tls_beside_the_unix_socket(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    ensure_self_signed(files, "127.0.0.1")

    def ask(bound: Bound) -> None:
        context = ssl.create_default_context(cafile=files.certificate)
        with httpx2.Client(verify=context, base_url=f"https://{bound.listen}") as http:
            assert http.get("/peer").json() == {"extensions": {}}
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"https://{bound.listen}/peer")
        with local(bound) as http:
            assert http.get("/peer").status_code == 200

    bound = served(tmp_path, ask, listen=ListenConfig("127.0.0.1", 0, files))
    assert bound.listen is not None
    assert bound.listen.startswith("127.0.0.1:")


def test_a_taken_port_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    ensure_self_signed(files, "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(GpupoolError) as refused:
            served(tmp_path, lambda _: None, listen=ListenConfig("127.0.0.1", port, files))
    assert refused.value.code is ErrorCode.PORT_TAKEN
    assert str(port) in refused.value.message
    assert not (tmp_path / "api.sock").exists()


@pytest.mark.parametrize(("host", "port"), [("203.0.113.7", 0), ("no such host", 0), ("127.0.0.1", 70000)])
def test_addresses_that_are_not_this_machines(host: str, port: int) -> None:
    with pytest.raises(GpupoolError) as refused:
        listen_tcp(host, port)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_stopping_answers_what_is_under_way(tmp_path: Path) -> None:
    app = small_app()
    entered = threading.Event()

    @app.get("/slow")
    async def slow() -> str:
        entered.set()
        await app.state.closing.wait()
        return "done"

    answers: list[httpx2.Response] = []

    async def run() -> None:
        ready = asyncio.Event()
        where: list[Bound] = []
        serving = asyncio.create_task(
            serve(app, socket_path=tmp_path / "s", ready=lambda bound: (where.append(bound), ready.set()))
        )
        await ready.wait()

        def ask() -> None:
            with local(where[0]) as http:
                answers.append(http.get("/slow"))

        asking = asyncio.create_task(asyncio.to_thread(ask))
        await asyncio.to_thread(entered.wait, 30)
        serving.cancel()
        await asking
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(run())
    assert answers[0].json() == "done"


# Certificates


def test_a_certificate_is_made_once_for_this_machine(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    first = ensure_self_signed(files, "gpu1.example")
    assert ensure_self_signed(files, "gpu1.example") == first == fingerprint(files.certificate)
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"gpu1.example", "localhost", socket.gethostname()} <= set(names.get_values_for_type(x509.DNSName))
    assert "127.0.0.1" in map(str, names.get_values_for_type(x509.IPAddress))
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert 365 <= life.total_seconds() / 86400 < 366


@pytest.mark.parametrize("content", [b"", b"not a certificate", b"\xff\xfe"])
def test_unusable_certificates_are_named(tmp_path: Path, content: bytes) -> None:
    files = CertificateFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    files.certificate.write_bytes(content)
    files.key.write_bytes(content)
    for use in (
        lambda: server_context(files),
        lambda: fingerprint(files.certificate),
        lambda: ensure_self_signed(files, "x"),
    ):
        with pytest.raises(GpupoolError) as refused:
            use()
        assert refused.value.code is ErrorCode.INVALID_FILE
        assert str(files.certificate) in refused.value.message


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    ours = CertificateFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    theirs = CertificateFiles(tmp_path / "cert2.pem", tmp_path / "key2.pem")
    ensure_self_signed(ours, "x")
    ensure_self_signed(theirs, "x")
    with pytest.raises(GpupoolError) as refused:
        server_context(CertificateFiles(ours.certificate, theirs.key))
    assert refused.value.code is ErrorCode.INVALID_FILE


def test_nothing_follows_a_tls_handshake_that_a_client_with_two_threads_could_trip_over(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    ensure_self_signed(files, "x")
    assert server_context(files).num_tickets == 0


# Attempts


def test_attempts_are_forgotten_after_the_window_and_peers_are_bounded() -> None:
    now = [0.0]
    attempts = FailedAttempts(limit=3, window_s=60, clock=lambda: now[0])
    for _ in range(3):
        attempts.check("a")
        attempts.failed("a")
    with pytest.raises(GpupoolError) as refused:
        attempts.check("a")
    assert refused.value.code is ErrorCode.TOO_MANY_ATTEMPTS
    assert refused.value.http_status == 429
    attempts.check("b")
    now[0] = 60.0
    attempts.check("a")
    for peer in range(5000):
        attempts.failed(str(peer))
    assert len(attempts._times) == 4096
