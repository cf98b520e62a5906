"""A real gateway process, the control plane's side of its socket, and real replicas in processes."""

from __future__ import annotations

import hashlib
import json
import queue
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpupool.domain.protocol.gateway_table import (
    Command,
    Load,
    Report,
    Route,
    RouteAccess,
    RouteLimits,
    RouteReplica,
    Table,
    Wake,
    decode_report,
    encode,
)

TIMEOUT_S = 30.0
TOKEN = "gpt_t1_secret-of-a-member"
OTHER_TOKEN = "gpt_t2_secret-of-another-project"
REPLICA = Path(__file__).with_name("replica_program.py")


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def eventually(check: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := check()):
        assert time.monotonic() < deadline, "this did not become true in time"
        time.sleep(0.01)
    return found


class Replica:
    """A server in a process of its own; its requests appear in ``log``, one JSON object each."""

    def __init__(self, folder: Path, name: str, *arguments: str, port: int = 0) -> None:
        self.name = name
        self.log = folder / f"{name}.jsonl"
        command = [
            sys.executable,
            str(REPLICA),
            "--port",
            str(port),
            "--log",
            str(self.log),
            "--name",
            name,
            *arguments,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def entry(self, *, draining: bool = False) -> RouteReplica:
        return RouteReplica(self.name, f"127.0.0.1:{self.port}", draining)

    def requests(self) -> list[dict[str, Any]]:
        text = self.log.read_text() if self.log.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def stop(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(TIMEOUT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


class ControlPlane:
    """The control plane's side of the socket."""

    def __init__(self, path: Path) -> None:
        self._sock = socket.socket(socket.AF_UNIX)

        def connected() -> bool:
            with suppress(OSError):
                self._sock.connect(str(path))
                return True
            return False

        eventually(connected)
        self.reports: queue.Queue[Report] = queue.Queue()
        self.closed = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError), self._sock.makefile("rb") as lines:
            for line in lines:
                self.reports.put(decode_report(line))
        self.closed.set()

    def send(self, *commands: Command) -> None:
        self._sock.sendall(b"".join(encode(command) for command in commands))

    def send_bytes(self, data: bytes) -> None:
        self._sock.sendall(data)

    def wait_for(self, wanted: Callable[[Report], bool]) -> Report:
        while True:
            report = self.reports.get(timeout=TIMEOUT_S)
            if wanted(report):
                return report

    def wait_wake(self, key: str) -> None:
        self.wait_for(lambda report: report == Wake(key))

    def wait_load(self, key: str, wanted: Callable[[Load], bool]) -> Load:
        found = self.wait_for(lambda report: isinstance(report, Load) and report.key == key and wanted(report))
        assert isinstance(found, Load)
        return found

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


@dataclass
class GatewayProcess:
    """A gateway; ``start`` may be called again after ``kill``."""

    folder: Path
    port: int = 0
    options: tuple[str, ...] = ("--fallback",)
    process: subprocess.Popen[bytes] | None = None
    tls: ssl.SSLContext | None = None
    control_planes: list[ControlPlane] = field(default_factory=list)
    version: int = 0

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def start(self, *, wait: bool = True) -> None:
        for path in (self.run, self.state):
            path.mkdir(exist_ok=True, mode=0o700)
        command = [sys.executable, "-m", "gpupool.gateway.main", "--state-dir", str(self.state)]
        command += ["--run-dir", str(self.run), "--port", str(self.port), *self.options]
        with (self.folder / "gateway.log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log)
        if wait:
            pid = self.process.pid
            eventually(lambda: self.address().get("pid") == pid and "port" in self.address())
            self.port = self.address()["port"]

    def address(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.run / "gateway.json").read_text())
            return found
        return {}

    def log(self) -> str:
        return (self.folder / "gateway.log").read_text()

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)

    def control_plane(self) -> ControlPlane:
        found = ControlPlane(self.run / "gateway.sock")
        self.control_planes.append(found)
        return found

    def table(self, control: ControlPlane, *routes: Route) -> None:
        """Send a table and wait until the gateway has applied it: then its probe route answers."""
        self.version += 1
        probe = Route("probe", f"v{self.version}", RouteAccess.PUBLIC, limits=RouteLimits(held=0))
        control.send(Table(self.version, (*routes, probe)))
        eventually(
            lambda: (
                status_of(self.ask(f"GET /s/probe/v{self.version}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
                == 503
            )
        )

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)
        return self.tls.wrap_socket(sock, server_hostname="localhost") if self.tls else sock

    def ask(self, request: str | bytes, *, end: bool = False) -> bytes:
        """Send bytes on a new connection, and return everything until the gateway closes it."""
        with self.connect() as sock:
            with suppress(OSError):  # the gateway may refuse before everything is sent
                sock.sendall(request.encode("latin-1") if isinstance(request, str) else request)
                if end:
                    sock.shutdown(socket.SHUT_WR)
            return read_all(sock)

    def stop(self) -> None:
        for control in self.control_planes:
            control.close()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(TIMEOUT_S)


def read_all(sock: socket.socket) -> bytes:
    data = b""
    with suppress(ConnectionResetError):
        while part := sock.recv(65536):
            data += part
    return data


def read_until(sock: socket.socket, ending: bytes) -> bytes:
    data = b""
    while ending not in data:
        part = sock.recv(65536)
        assert part, f"the connection ended after {data!r}"
        data += part
    return data


def readable(sock: socket.socket, timeout_s: float) -> bool:
    return bool(select.select([sock], [], [], timeout_s)[0])


def status_of(response: bytes) -> int:
    assert response.startswith(b"HTTP/1.1 "), response[:200]
    return int(response[9:12])


def body_of(response: bytes) -> bytes:
    return response.partition(b"\r\n\r\n")[2]


def problem_of(response: bytes) -> dict[str, Any]:
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"Content-Type: application/problem+json" in head, response[:300]
    found: dict[str, Any] = json.loads(body)
    assert found["status"] == status_of(response)
    assert found["code"]
    assert found["detail"]
    return found
