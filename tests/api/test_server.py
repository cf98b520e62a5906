"""The sockets, the certificate, and what goes wrong with either."""

from __future__ import annotations

import asyncio
import contextlib
import logging
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

from gpupool.api.errors import install
from gpupool.api.login_limit import MAX_KEYS, FailedAttempts
from gpupool.api.middleware import BodyLimit, InternalErrors
from gpupool.api.server import acceptor, protocols, server
from gpupool.api.server.listeners import listen_tcp, listen_unix
from gpupool.api.server.proxies import TrustedProxies, network_of
from gpupool.api.server.server import BoundAddresses, ListenConfig, serve
from gpupool.api.server.tls import CertificateFiles, ensure_self_signed, fingerprint, server_context
from gpupool.daemon.config import PoolConfig
from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.log_rate_limit import LimitedLines, LogLimit


def small_app() -> FastAPI:
    app = FastAPI()
    app.state.closing = asyncio.Event()
    install(app)
    app.add_middleware(BodyLimit, limit=1000)
    app.add_middleware(InternalErrors)

    @app.get("/peer")
    async def peer(request: Request) -> dict[str, Any]:
        return {"extensions": {k: v for k, v in request.scope.get("extensions", {}).items() if "uid" in k}}

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("a secret detail")

    @app.post("/size")
    async def size(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    return app


def served(folder: Path, ask: Callable[[BoundAddresses], None], **options: Any) -> BoundAddresses:
    """Serve a small application while ``ask`` runs in a thread of its own."""
    bound: list[BoundAddresses] = []

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


def local(bound: BoundAddresses) -> httpx2.Client:
    return httpx2.Client(transport=httpx2.HTTPTransport(uds=str(bound.socket_path)), base_url="http://pool", timeout=60)


def test_socket_has_its_mode_and_is_removed_with_the_server(tmp_path: Path) -> None:
    def ask(bound: BoundAddresses) -> None:
        assert stat.S_IMODE(bound.socket_path.stat().st_mode) == 0o660
        with local(bound) as http:
            peer = http.get("/peer", headers={"gpupool.peer_uid": "0"}).json()["extensions"]
        import os

        assert peer == {"gpupool.peer_uid": os.getuid()}

    served(tmp_path, ask, socket_mode=0o660)
    assert list(tmp_path.iterdir()) == []


def test_server_stops_at_once_between_two_ticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_TICK_S", 3600.0)

    def ask(bound: BoundAddresses) -> None:
        with local(bound) as http:
            assert http.get("/peer").status_code == 200

    served(tmp_path, ask)


def test_stale_socket_is_replaced_and_new_socket_is_not_removed(tmp_path: Path) -> None:
    socket.socket(socket.AF_UNIX).bind(str(tmp_path / "api.sock"))
    successor: list[socket.socket] = []

    def ask(bound: BoundAddresses) -> None:
        with local(bound) as http:
            assert http.get("/peer").status_code == 200
        successor.append(listen_unix(bound.socket_path, 0o600))

    served(tmp_path, ask)
    assert (tmp_path / "api.sock").exists()
    successor[0].close()


def test_socket_path_beyond_the_kernel_limit_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    listener = listen_unix(deep / "api.sock", 0o600)
    assert stat.S_ISSOCK((deep / "api.sock").stat().st_mode)
    listener.close()


def test_missing_socket_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(GpupoolError) as refused:
        served(tmp_path / "gone", lambda _: None)
    assert refused.value.code is ErrorCode.POOL_START_FAILED


def test_unexpected_error_shows_only_an_incident_number(tmp_path: Path) -> None:
    def ask(bound: BoundAddresses) -> None:
        with local(bound) as http:
            answer = http.get("/broken")
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "INTERNAL"
            assert "secret" not in answer.text
            assert http.get("/peer").status_code == 200

    served(tmp_path, ask)


def test_body_and_header_sizes_are_limited(tmp_path: Path) -> None:
    def ask(bound: BoundAddresses) -> None:
        with local(bound) as http:
            assert http.post("/size", content=b"x" * 1000).text == "1000"
            assert http.post("/size", content=b"x" * 1001).status_code == 413
            assert http.post("/size", content=iter([b"x" * 600, b"x" * 401])).status_code == 413
            assert http.post("/size", content=iter([b"x" * 600, b"x" * 400])).text == "1000"
            assert http.get("/peer", headers={"x": "y" * 70_000}).status_code == 400
            assert http.get("/peer?" + "y" * 64_000, headers={"x": "y" * 2000}).status_code == 400

    served(tmp_path, ask)


def test_tls_is_served_next_to_the_unix_socket(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    ensure_self_signed(files, "127.0.0.1")

    def ask(bound: BoundAddresses) -> None:
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


def test_used_port_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
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
def test_foreign_listen_addresses_are_refused(host: str, port: int) -> None:
    with pytest.raises(GpupoolError) as refused:
        listen_tcp(host, port)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_stopping_server_answers_active_requests(tmp_path: Path) -> None:
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
        where: list[BoundAddresses] = []
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


def test_certificate_is_created_once_per_machine(tmp_path: Path) -> None:
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
def test_unusable_certificates_are_reported(tmp_path: Path, content: bytes) -> None:
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


def test_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    ours = CertificateFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    theirs = CertificateFiles(tmp_path / "cert2.pem", tmp_path / "key2.pem")
    ensure_self_signed(ours, "x")
    ensure_self_signed(theirs, "x")
    with pytest.raises(GpupoolError) as refused:
        server_context(CertificateFiles(ours.certificate, theirs.key))
    assert refused.value.code is ErrorCode.INVALID_FILE


def test_no_session_tickets_follow_the_tls_handshake(tmp_path: Path) -> None:
    files = CertificateFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    ensure_self_signed(files, "x")
    assert server_context(files).num_tickets == 0


# Attempts


WRONG = GpupoolError(ErrorCode.UNAUTHENTICATED, "The token is unknown.")


def _attempt(attempts: FailedAttempts, peer: str, credential: str, *, good: bool = False) -> str:
    try:
        with attempts.counted(peer, credential):
            if not good:
                raise WRONG
    except GpupoolError as error:
        return str(error.code)
    return "OK"


def test_wrong_credentials_are_limited_by_address_within_a_window() -> None:
    now = [0.0]
    attempts = FailedAttempts(limit=3, peer_limit=5, window_s=60, clock=lambda: now[0])
    stale = [_attempt(attempts, "a", "gpt_0123456789_x") for _ in range(4)]
    assert stale == ["UNAUTHENTICATED"] * 3 + ["TOO_MANY_ATTEMPTS"]
    assert _attempt(attempts, "a", "gpt_0123456789_x", good=True) == "OK"
    others = [_attempt(attempts, "a", f"gpt_{number}_of_another_script") for number in range(3)]
    assert others == ["UNAUTHENTICATED"] * 1 + ["TOO_MANY_ATTEMPTS"] * 2
    assert _attempt(attempts, "a", "gpt_ffffffff_x", good=True) == "OK"
    assert _attempt(attempts, "b", "gpt_0123456789_x") == "UNAUTHENTICATED"
    now[0] = 60.0
    assert _attempt(attempts, "a", "gpt_0123456789_x") == "UNAUTHENTICATED"


def test_number_of_remembered_addresses_is_limited() -> None:
    attempts = FailedAttempts()
    for peer in range(5000):
        _attempt(attempts, str(peer), "x")
    assert len(attempts._times) == MAX_KEYS


# Clients that do not get on


def _wait_for_end(sock: socket.socket) -> bytes:
    sock.settimeout(60)
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def _dial(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    return sock


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n",
        b"GET /peer HTTP/1.1\r\nHost: pool\r\nx: ",
        b"POST /size HTTP/1.1\r\nHost: pool\r\nContent-Length: 10\r\n\r\n12345",
        b"GET /peer HTTP/1.1\r\nHost: pool\r\n\r\n",
    ],
    ids=["nothing", "an empty line", "half a head", "half a body", "nothing after an answer"],
)
def test_stalled_client_is_disconnected(tmp_path: Path, sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (acceptor, "HEAD_TIMEOUT_S"),
        (protocols, "HEAD_TIMEOUT_S"),
        (protocols, "BODY_TIMEOUT_S"),
        (protocols, "KEEP_ALIVE_S"),
    ):
        monkeypatch.setattr(module, name, 0.2)

    def ask(bound: BoundAddresses) -> None:
        with contextlib.closing(_dial(bound.socket_path)) as sock:
            sock.sendall(sent)
            _wait_for_end(sock)

    served(tmp_path, ask)


def test_endless_header_is_refused_at_once(tmp_path: Path) -> None:
    def ask(bound: BoundAddresses) -> None:
        with contextlib.closing(_dial(bound.socket_path)) as sock:
            with contextlib.suppress(OSError):
                sock.sendall(b"GET /peer HTTP/1.1\r\nx: " + b"y" * 200_000)
            assert _wait_for_end(sock).startswith(b"HTTP/1.1 400")

    served(tmp_path, ask)


def test_disconnect_during_a_request_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(bound: BoundAddresses) -> None:
        for _ in range(5):
            with contextlib.closing(_dial(bound.socket_path)) as sock:
                sock.sendall(b"POST /size HTTP/1.1\r\nHost: pool\r\nContent-Length: 10\r\n\r\n12345")
                sock.shutdown(socket.SHUT_WR)
                _wait_for_end(sock)

    served(tmp_path, ask)
    assert caplog.text == ""
    assert "unexpected error" not in capsys.readouterr().out


def test_log_lines_caused_by_clients_are_limited() -> None:
    now = [0.0]
    log = logging.getLogger("gpupool.test.limited")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    log.addFilter(LimitedLines(LogLimit(lambda: now[0], lines=3)))
    for number in range(10):
        log.warning("wrong: %d", number)
    now[0] = 60.0
    log.warning("wrong: %d", 10)
    assert lines == ["wrong: 0", "wrong: 1", "wrong: 2", "wrong: 10 (7 more like this were not logged)"]


def test_client_address_is_rightmost_untrusted_address() -> None:
    proxies = TrustedProxies(["10.0.0.0/24", "fd00::/8"])
    for peer, forwarded, origin in (
        ("192.0.2.1", ["198.51.100.7"], "192.0.2.1"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("10.0.0.5", ["198.51.100.7"], "198.51.100.7"),
        ("10.0.0.5", ["1.1.1.1, 198.51.100.7, 10.0.0.6"], "198.51.100.7"),
        ("10.0.0.5", ["1.1.1.1", "198.51.100.7"], "198.51.100.7"),
        ("10.0.0.5", ["1.1.1.1, <script>"], "10.0.0.5"),
        ("::ffff:10.0.0.5", ["2001:db8::1"], "2001:db8::1"),
        ("fd00::1", ["198.51.100.7"], "198.51.100.7"),
    ):
        assert proxies.origin(peer, forwarded) == origin, (peer, forwarded)
    assert network_of("2001:db8::1234:5678") == "2001:db8::/64"
    for wrong in ("", "0.0.0.0/0", "10.0.0.1/24", "proxy", "10.0.0.0/33"):
        with pytest.raises(GpupoolError):
            TrustedProxies([wrong])


def test_trusted_proxies_are_stored_with_pool_options() -> None:
    config = PoolConfig("/state", "/run", trusted_proxies=("10.0.0.5/32",))
    assert decode(PoolConfig, config.to_dict()).trusted_proxies == ("10.0.0.5/32",)
    with pytest.raises(GpupoolError):
        PoolConfig("/state", "/run", trusted_proxies=("0.0.0.0/0",))
