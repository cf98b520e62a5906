"""A pool on the network, and machines that have nothing but a login."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e_pool import COMMAND, PATIENCE_S, RealPool

import fork_server

STUDENT = 54321
PIECE = 65536


@dataclass
class Laptop:
    """A machine that has nothing but a home and a login: what the pool's machine has is not in its environment."""

    home: Path
    work: Path
    url: str
    fingerprint: str

    @property
    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUPOOL_", "XDG_"))}
        return {**kept, "HOME": str(self.home), "PATH": f"{COMMAND.parent}:{os.environ['PATH']}", "NO_COLOR": "1"}

    def __call__(
        self, *words: str, stdin: bytes = b"", ok: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[bytes]:
        timeout_s = options.pop("timeout", PATIENCE_S)
        options = {"cwd": self.work, "env": self.env, **options}
        done = fork_server.run([str(COMMAND), *words], stdin, timeout_s, **options)
        assert not ok or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout!r}\n{done.stderr.decode()}"
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    def text(self, *words: str, **options: Any) -> str:
        return self(*words, **options).stdout.decode()

    def begin(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        options = {"cwd": self.work, "env": self.env, "stdin": pipe, "stdout": pipe, "stderr": pipe, **options}
        return fork_server.popen([str(COMMAND), *words], **options)

    def login(self, token: str) -> None:
        self("login", self.url, "--name", "lab", "--fingerprint", self.fingerprint, stdin=f"{token}\n".encode())

    def run(self, *command: str, **options: Any) -> str:
        return self.text("run", "-q", "-p", "0.05", "--", *command, **options)

    def write(self, path: str, data: bytes = b"x") -> Path:
        place = self.work / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        return place


class Head:
    """A pool that listens on the network, and tokens for its users."""

    def __init__(self, pool: RealPool, url: str) -> None:
        self.pool, self.url = pool, url
        self.fingerprint = _fingerprint(pool)

    def token(self, user: str | None = None) -> str:
        words = ("--user", user) if user else ()
        said = self.pool.text("token", "create", "--expires", "1h", *words).split()
        return next(word for word in said if word.startswith("gpt_"))

    def laptop(self, folder: Path, token: str) -> Laptop:
        home, work = folder / "home", folder / "project"
        home.mkdir(parents=True)
        work.mkdir()
        made = Laptop(home, work, self.url, self.fingerprint)
        made.login(token)
        return made


class Proxy:
    """A proxy between a laptop and the pool; ``most_bytes`` to the pool pass, the rest waits."""

    def __init__(self, head: Head, most_bytes: float = math.inf) -> None:
        host, _, port = head.url.partition(":")
        self._to = (host, int(port))
        self._left = most_bytes
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._to)
                self._ends += near, far
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE):
                if to.getpeername() == self._to:
                    self._left -= len(data)
                    if self._left < 0:
                        self._closed.wait()
                to.sendall(data)
        with suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)

    def restart(self) -> None:
        """End what is on its way, as a proxy does to both sides when it restarts."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.restart()
        self._listener.close()
        self._closed.set()


def _fingerprint(pool: RealPool) -> str:
    from gpupool.api.server.tls import fingerprint

    return fingerprint(pool.state / "tls" / "cert.pem")
