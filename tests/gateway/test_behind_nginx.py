"""The configuration for nginx of docs/gateway.md in front of a gateway."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from gateway_process import (
    TIMEOUT_S,
    GatewayProcess,
    Replica,
    body_of,
    eventually,
    read_all,
    read_until,
    status_of,
)

from free_ports import free_port
from gpupool.domain.protocol.gateway_table import Route, RouteAccess

DOCS = Path(__file__).resolve().parents[2] / "docs" / "gateway.md"
pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")


@pytest.fixture
def front(tmp_path: Path, replica: Callable[..., Replica]) -> Iterator[GatewayProcess]:
    """Return a gateway that is reached through nginx."""
    gateway = GatewayProcess(tmp_path)
    gateway.options = ("--fallback", "--trusted-proxy", "127.0.0.1/32")
    gateway.start()
    gateway.table(gateway.control_plane(), Route("t", "n", RouteAccess.PUBLIC, replicas=(replica().entry(),)))
    blocks = re.findall(r"```text\n(location .*?)```", DOCS.read_text(), re.DOTALL)
    (upgrade,) = re.findall(r"`(map \$http_upgrade .*?\})`", DOCS.read_text())
    port = free_port()
    location = blocks[0].replace("127.0.0.1:8490", f"127.0.0.1:{gateway.port}")
    names = ("proxy", "client_body", "fastcgi", "uwsgi", "scgi")
    folders = " ".join(f"{name}_temp_path {tmp_path}/{name};" for name in names)
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {tmp_path}/nginx.pid; error_log {tmp_path}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; {folders} {upgrade}\n"
        f"server {{ listen 127.0.0.1:{port};\n{location} }} }}\n"
    )
    process = subprocess.Popen(["nginx", "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "error.log")])
    own, gateway.port = gateway.port, port

    def answers() -> bool:
        with suppress(OSError):
            gateway.connect().close()
            return True
        return False

    eventually(answers)
    yield gateway
    gateway.port = own
    process.terminate()
    process.wait(TIMEOUT_S)
    gateway.stop()


def test_requests_streams_and_websockets_pass_both(front: GatewayProcess) -> None:
    request = (
        b"POST /s/t/n/echo HTTP/1.1\r\nHost: services.org:8\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"
    )
    answer = json.loads(body_of(front.ask(request)))
    fields = dict(answer["fields"])
    assert answer["body"] == "hello"
    assert fields["host"] == fields["x-forwarded-host"] == "services.org:8"
    assert fields["x-forwarded-for"] == "127.0.0.1, 127.0.0.1"
    with front.connect() as sock:
        sock.sendall(b"GET /s/t/n/stream?200 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"data: 150" not in read_until(sock, b"data: 0")  # it is not collected
    with front.connect() as sock:
        sock.sendall(b"GET /s/t/n/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert status_of(read_until(sock, b"hello")) == 101
        sock.sendall(b"through both")
        read_until(sock, b"through both")
    assert status_of(front.ask(b"GET /s/t/unknown/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")) == 404


def test_a_kept_connection_of_a_proxy_serves_many_clients(front: GatewayProcess) -> None:
    for number in range(20):
        body = str(number) * (number + 1)
        head = f"POST /s/t/n/echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        with front.connect() as sock:
            sock.sendall((head + body).encode())
            assert body.encode() in read_all(sock)
