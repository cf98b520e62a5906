"""Connections of the standard library to a pool, for what is not on the fast path: streams, and pools over TLS."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gpupool.client.locate import Remote, connect_unix

STREAM_SILENCE_S = 60.0  # the pool says something every 15 s, if only a comment
LINE_LIMIT_BYTES = 4 << 20


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


def tls_context(place: Remote) -> ssl.SSLContext:
    """Trusts the system's authorities, or only the given file (an authority or a self-signed certificate)."""
    return ssl.create_default_context(cafile=place.ca_file)


def remote_connection(place: Remote, timeout_s: float) -> http.client.HTTPConnection:
    """HTTP over TLS."""
    url = urlsplit(place.url)
    return http.client.HTTPSConnection(
        url.hostname or "", url.port or 443, timeout=timeout_s, context=tls_context(place)
    )


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One message of a server-sent stream; ``data`` is its JSON."""

    id: str
    event: str
    data: Any


def read_events(response: http.client.HTTPResponse) -> Iterator[StreamEvent]:
    """The messages of a stream until it ends. Raises ``OSError`` when it breaks."""
    fields: dict[str, str] = {}
    while line := response.readline(LINE_LIMIT_BYTES):
        text = line.decode(errors="replace").rstrip("\r\n")
        if not text:
            if "data" in fields:
                yield StreamEvent(fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"]))
            fields = {}
            continue
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
