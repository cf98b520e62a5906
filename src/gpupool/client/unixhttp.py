"""HTTP of the standard library over a unix socket."""

from __future__ import annotations

import http.client
import socket

from gpupool.client.locate import connect_unix


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("gpupool", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Raises ``OSError`` when nobody listens."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        connect_unix(self.sock, self._path)
