"""The connection to the control plane: tables, invalid messages, and the time without a control plane."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from gateway_process import (
    TIMEOUT_S,
    ControlPlane,
    GatewayProcess,
    Replica,
    body_of,
    eventually,
    problem_of,
    status_of,
)

from gpupool.domain.protocol.gateway_table import Route, RouteAccess, RouteChange, RouteRemoval, Table, encode

GET = b"GET /s/t/n/name HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
START = Callable[..., Replica]


def route(*names: Replica) -> Route:
    return Route("t", "n", RouteAccess.PUBLIC, replicas=tuple(each.entry() for each in names))


def test_requests_are_served_without_a_control_plane_and_after_a_kill(
    gateway: GatewayProcess, control: ControlPlane, replica: START
) -> None:
    gateway.table(control, route(replica()))
    control.close()
    assert body_of(gateway.ask(GET)) == b"r0"
    stored = gateway.state / "gateway-table.json"
    eventually(lambda: stored.exists() and b'"probe"' in stored.read_bytes())
    assert stored.stat().st_mode & 0o777 == 0o600
    port = gateway.port
    gateway.kill()
    gateway.start()
    assert gateway.port == port
    assert body_of(gateway.ask(GET)) == b"r0"
    again = gateway.control_plane()
    gateway.version = 0  # a new control plane counts from the beginning
    gateway.table(again)
    assert problem_of(gateway.ask(GET))["code"] == "UNKNOWN_SERVICE"


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"type":"table","version":1,"routes":[{}]}', b'{"type":"wake","key":"a/b"}']
)
def test_a_damaged_stored_table_is_ignored(gateway: GatewayProcess, content: bytes) -> None:
    gateway.kill()
    (gateway.state / "gateway-table.json").write_bytes(content)
    gateway.start()
    assert problem_of(gateway.ask(GET))["code"] == "UNKNOWN_SERVICE"
    assert "cannot be used" in gateway.log()


@pytest.mark.parametrize(
    "lines",
    [
        b"nonsense\n",
        encode(RouteChange(1, Route("t", "n"))),
        encode(RouteRemoval(1, "t/n")),
        encode(Table(5)) + encode(RouteChange(5, Route("t", "n"))),
        b'{"type":"wake","key":"t/n"}\n',
        b"x" * (33 << 20),
    ],
)
def test_an_invalid_message_ends_the_connection_and_keeps_the_table(
    gateway: GatewayProcess, control: ControlPlane, replica: START, lines: bytes
) -> None:
    gateway.table(control, route(replica()))
    control.send(Table(9, (route(replica("r1")),)))
    other = gateway.control_plane()
    eventually(control.closed.is_set)  # the latest control plane counts
    with suppress(OSError):
        other.send_bytes(lines)
    eventually(other.closed.is_set)
    assert "is closed:" in gateway.log()
    if b'"version":5' not in lines:
        assert status_of(gateway.ask(GET)) == 200


def test_a_new_control_plane_hears_of_held_requests(gateway: GatewayProcess, control: ControlPlane) -> None:
    gateway.table(control, Route("t", "n", RouteAccess.PUBLIC))
    with gateway.connect() as sock:
        sock.sendall(GET)
        control.wait_wake("t/n")
        control.close()
        again = gateway.control_plane()
        again.send(Table(1, (Route("t", "n", RouteAccess.PUBLIC),)))
        again.wait_wake("t/n")
        assert again.wait_load("t/n", lambda load: load.held == 1)


def test_the_socket_is_private(gateway: GatewayProcess) -> None:
    assert (gateway.run / "gateway.sock").stat().st_mode & 0o777 == 0o600


def test_an_idle_gateway_does_nothing_and_is_small(gateway: GatewayProcess, control: ControlPlane) -> None:
    assert gateway.process is not None
    gateway.table(control, Route("t", "n", RouteAccess.PUBLIC))
    folder = Path(f"/proc/{gateway.process.pid}")

    def switches() -> int:
        lines = (folder / "status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)

    def rests() -> bool:
        before = switches()
        time.sleep(1.0)
        return switches() - before <= 2

    eventually(rests)
    resident = next(line for line in (folder / "status").read_text().splitlines() if line.startswith("VmRSS"))
    assert int(resident.split()[1]) < 45_000


def certificate(folder: Path, name: str) -> None:
    subject = ("-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", str(folder / "new-key"), "-out", str(folder / "new-cert"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    os.replace(folder / "new-key", folder / "key.pem")  # noqa: PTH105
    os.replace(folder / "new-cert", folder / "cert.pem")  # noqa: PTH105


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_tls_with_a_certificate_that_changes(tmp_path: Path, replica: START) -> None:
    gateway = GatewayProcess(tmp_path)
    gateway.options = ("--fallback", "--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    gateway.start(wait=False)
    try:
        eventually(lambda: "cannot be used" in gateway.log())  # the control plane may not have created it yet
        certificate(tmp_path, "first")
        eventually(lambda: gateway.address().get("tls"))
        gateway.port = gateway.address()["port"]
        gateway.tls = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        control = gateway.control_plane()
        gateway.table(control, route(replica()))
        answer = gateway.ask(b"GET /s/t/n/echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert ["x-forwarded-proto", "https"] in json.loads(body_of(answer))["fields"]
        old = fingerprint(gateway.port)
        (tmp_path / "cert.pem").write_text("damaged")
        eventually(lambda: gateway.log().count("cannot be used") == 2)
        assert fingerprint(gateway.port) == old
        certificate(tmp_path, "second")
        eventually(lambda: fingerprint(gateway.port) != old)
        with socket.create_connection(("127.0.0.1", gateway.port), TIMEOUT_S) as plain:
            plain.sendall(GET)
            assert not plain.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        gateway.stop()


def fingerprint(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=TIMEOUT_S)
