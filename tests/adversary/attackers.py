"""A pool of root's with members and a network address, and programs that use up what they can reach of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e_pool import RealPool, fresh_pool

from free_ports import free_port

ATTACKER, NEIGHBOUR = 54331, 54332
ANSWER_S = 20.0

_BEGIN = """
import collections, contextlib, encodings.idna, http.client, json, os, resource, select
import socket, ssl, sys, threading, time
asked = json.loads(sys.argv[1])
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
os.setgroups([])
os.setgid(asked["uid"])
os.setuid(asked["uid"])

def plain():
    if asked["port"]:
        sock = socket.create_connection(("127.0.0.1", asked["port"]))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(asked["socket"])
    return sock

def secure():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(plain())

def ignoring(act):
    with contextlib.suppress(OSError):
        return act()

def ask(method, path, body=None, headers={}, connect=plain):
    connection = http.client.HTTPConnection("pool")
    connection.sock = connect()
    connection.sock.settimeout(20)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return [answer.status, answer.read().decode("utf-8", "replace")]

def say(value):
    print(json.dumps(value), flush=True)

def still_open(socks):
    count = 0
    for sock in socks:
        poller = select.poll()
        poller.register(sock, select.POLLIN | select.POLLHUP)
        count += not poller.poll(0)
    return count

def hold(socks):
    say(still_open(socks))
    for _ in sys.stdin:
        say(still_open(socks))
"""


class Program:
    """A Python program of another account that says JSON lines; it ends when its standard input does."""

    def __init__(self, source: str, asked: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _BEGIN + source, json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the attacker failed"
        return json.loads(line)

    def open_now(self) -> int:
        """Return the number of its connections that the pool has not closed."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return int(self.hear())

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()


@dataclass
class Scene:
    """The pool, where it listens, and a valid token of each kind."""

    pool: RealPool
    port: int
    admin_token: str
    member_token: str

    @contextmanager
    def program(self, source: str, uid: int = ATTACKER, *, network: bool = False) -> Iterator[Program]:
        asked = {"uid": uid, "socket": str(self.pool.run / "api.sock"), "port": self.port if network else 0}
        program = Program(source, asked)
        try:
            yield program
        finally:
            program.close()

    def ask_as(self, uid: int) -> tuple[int, Any]:
        """Return the answer that an account of the machine gets."""
        with self.program('say(ask("GET", "/v1/whoami"))', uid) as program:
            status, text = program.hear()
        return status, json.loads(text)

    def ask_with(self, token: str) -> int:
        """Send a request with a token over the network and return its status."""
        source = f'say(ask("GET", "/v1/whoami", headers={{"authorization": "Bearer {token}"}}, connect=secure))'
        with self.program(source, network=True) as program:
            return int(program.hear()[0])

    @contextmanager
    def requests_per_second(self, limit: int) -> Iterator[None]:
        """Set another limit on the requests of one user in this block."""
        self.pool("policy", "set", "--max-requests-per-second", str(limit))
        try:
            yield
        finally:
            self.pool("policy", "set", "--max-requests-per-second", "100")

    def assert_everybody_is_answered(self) -> None:
        """Check that root, a neighbour on the machine, a member and a remote administrator get answers."""
        assert self.pool("ps", timeout=ANSWER_S).returncode == 0
        assert self.ask_as(NEIGHBOUR)[0] == 200
        assert self.ask_with(self.member_token) == 200
        assert self.ask_with(self.admin_token) == 200

    @property
    def control_plane(self) -> int:
        return self.pool.pids()["control-plane"]

    def memory_mib(self) -> int:
        status = Path(f"/proc/{self.control_plane}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return int(found[1]) // 1024

    def _log(self) -> Path:
        return self.pool.state / "log" / "control-plane.log"

    def log_bytes(self) -> int:
        return self._log().stat().st_size

    def log_since(self, start: int) -> bytes:
        return self._log().read_bytes()[start:]


@contextmanager
def scene_of_attacks() -> Iterator[Scene]:
    port = free_port()
    with fresh_pool("1xT4", "--listen", f"127.0.0.1:{port}", "--tls-self-signed") as pool:
        pool("user", "set", "mia", "--role", "member")
        yield Scene(pool, port, _token(pool, "--role", "admin"), _token(pool, "--user", "mia"))


def _token(pool: RealPool, *words: str) -> str:
    made: str = pool.json("token", "create", "--expires", "1h", *words)["secret"]
    return made


def is_root() -> bool:
    return os.geteuid() == 0
