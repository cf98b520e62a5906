"""A real pool whose workloads are reached by the SSH programs of this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e_pool import PATIENCE_S, RealPool, eventually

ECHO = """
import os, socketserver, sys

class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)

server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(server.server_address[1]))
os.rename(sys.argv[1] + ".new", sys.argv[1])
server.serve_forever()
"""

# The first byte of a connection chooses the side that ends its sending side first, c(lient) or s(erver).
HALF_CLOSER = """
import os, socket, socketserver, sys

class HalfCloser(socketserver.BaseRequestHandler):
    def rest(self):
        return b"".join(iter(lambda: self.request.recv(65536), b""))

    def handle(self):
        if self.request.recv(1) == b"s":
            self.request.sendall(b"the end")
            self.request.shutdown(socket.SHUT_WR)
            data = self.rest()
            with open(sys.argv[2] + ".new", "wb") as file:
                file.write(data)
            os.rename(sys.argv[2] + ".new", sys.argv[2])
        else:
            self.request.sendall(self.rest()[::-1])

server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), HalfCloser)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(server.server_address[1]))
os.rename(sys.argv[1] + ".new", sys.argv[1])
server.serve_forever()
"""


class SshPool:
    """``run`` calls ssh, scp, sftp or rsync with the settings that ``gpupool ssh --configure`` has written."""

    def __init__(self, pool: RealPool) -> None:
        self.pool = pool
        self.config = pool.home / ".ssh" / "config"
        pool("ssh", "--configure")

    def begin_workload(self, name: str, *command: str) -> None:
        options = command if "--" in command else ("--", *(command or ("sleep", "100000")))
        self.pool("submit", name, "-p", "0.1", "--interactive", *options)
        assert self.pool.becomes(name, "running"), self.pool("why", name, ok=False).stdout.decode()

    def words(self, program: str, *words: str) -> list[str]:
        return [program, "-F", str(self.config), "-o", "LogLevel=ERROR", *words]

    def run(self, program: str, *words: str, stdin: bytes = b"", **more: Any) -> subprocess.CompletedProcess[bytes]:
        return self.run_plain(*self.words(program, *words), stdin=stdin, **more)

    def run_plain(self, *argv: str, stdin: bytes = b"", **more: Any) -> subprocess.CompletedProcess[bytes]:
        options = {"cwd": self.pool.work, "env": self.pool.env, "timeout": PATIENCE_S, **more}
        return subprocess.run(argv, input=stdin, capture_output=True, check=False, **options)

    def ssh(self, *words: str, stdin: bytes = b"", **more: Any) -> subprocess.CompletedProcess[bytes]:
        return self.run("ssh", "gpupool.dev", *words, stdin=stdin, **more)

    def begin(self, *words: str, **more: Any) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        options = {"cwd": self.pool.work, "env": self.pool.env, "stdin": pipe, "stdout": pipe, "stderr": pipe, **more}
        return subprocess.Popen(self.words("ssh", *words), **options)

    @contextlib.contextmanager
    def connected(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run an ssh in the background, and end it afterwards."""
        process = self.begin(*words)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def sessions(self) -> list[str]:
        """Return the ids of programs that ssh sessions have started and that have not ended."""
        with self.pool.client as client:
            return [job.id for job in client.list(labels={"session": "ssh"})]


def connects(port: int) -> socket.socket:
    """Connect to a local port, as soon as a program listens there."""
    found: list[socket.socket] = []

    def dial() -> bool:
        with contextlib.suppress(OSError):
            found.append(socket.create_connection(("127.0.0.1", port), timeout=30))
        return bool(found)

    assert eventually(dial)
    return found[0]


def written(path: Path) -> str:
    """Return the content of a file when it exists and has a whole line, or its text if it has none."""
    assert eventually(lambda: path.exists() and path.read_text().strip())
    return path.read_text().strip()


def pid_in(path: Path) -> int:
    return int(written(path))


def random_bytes(count: int) -> bytes:
    return os.urandom(count)
