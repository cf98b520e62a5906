"""Simulated heads of a pool for clients: TLS servers, each with its own certificate, with scripted behaviour.

They answer like ``api/routes/pool.py`` and ``api/standby.py``, which have their own tests.
"""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpupool.api.server.tls import CertificateFiles, ensure_self_signed

REFUSED = {"error": {"code": "NOT_LEADING", "message": "This control plane waits.", "hint": ""}}


class Head:
    """One head: ``term`` is that of its lead, None while it waits. ``asked`` has what was asked of it, with tokens."""

    def __init__(self, folder: Path, name: str, term: int | None) -> None:
        self.name, self.term = name, term
        self.files = CertificateFiles(folder / f"{name}.pem", folder / f"{name}.key")
        ensure_self_signed(self.files, "127.0.0.1")
        self.certificate = self.files.certificate.read_text()
        self.asked: list[tuple[str, str, str | None]] = []
        self.heads: list[dict[str, Any]] | None = None  # what it says of heads; None: it does not know the address
        self.hangs_up = False  # having read a request, before it answers
        self.replaced = False  # it says that it leads, and cannot write any more
        self.port = 0
        self.up()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def row(self) -> dict[str, Any]:
        """Return its row in a list of heads."""
        return {"name": self.name, "url": self.url, "certificate": self.certificate, "standing": "leads"}

    def targets(self) -> list[str]:
        """Return the requests that it got, except those for the leader and the list of heads."""
        return [f"{how} {what}" for how, what, _ in self.asked if what not in {"/v1/health", "/v1/heads"}]

    def up(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), self)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def die(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def freeze(self) -> None:
        """Stop answering; the kernel still accepts connections."""
        self._server.shutdown()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], head: Head) -> None:
        self.head = head
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(head.files.certificate, head.files.key)
        super().__init__(address, _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Accept in the request's own thread, so that a client without TLS delays no other."""
        try:
            request = self._context.wrap_socket(request, server_side=True)
        except OSError:
            return
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect: tests do that on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _answer(self) -> None:
        head = self.server.head
        self.rfile.read(int(self.headers.get("content-length") or 0))
        head.asked.append((self.command, self.path, self.headers.get("authorization")))
        if self.path == "/v1/health":
            leads = {"status": "ok", "term": head.term}
            self._say(200, leads if head.term is not None else {"status": "waiting", **REFUSED["error"]})
        elif head.hangs_up:
            self.close_connection = True
        elif head.term is None:
            self._say(503, REFUSED, **{"retry-after": "1"})
        elif head.replaced:
            self._say(503, REFUSED)
        elif self.path == "/v1/heads":
            self._say(404, {}) if head.heads is None else self._say(200, {"heads": head.heads})
        else:
            self._say(200, {"head": head.name})

    do_GET = do_POST = _answer  # noqa: N815 - as the class it is of wants it

    def _say(self, status: int, body: object, **headers: str) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(text))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        """Write no log."""
