"""The TCP socket of the gateway, its certificate, and the file that says where it listens."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpupool.domain.protocol.gateway_table import GATEWAY_ADDRESS
from gpupool.gateway.client_connection import ClientConnection
from gpupool.gateway.hub import Hub, log

BACKLOG = 1024
NEXT_PORTS = 20  # tried when the port is in use
RETRY_S = 1.0
CERTIFICATE_CHECK_S = 5.0
HANDSHAKE_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """The address, and the certificate for TLS. ``fallback``: use another port if this one is in use."""

    host: str
    port: int
    fallback: bool = False
    certificate: Path | None = None
    key: Path | None = None


class GatewayListener:
    """Listens on the configured port, waits for it while another program uses it, and reloads its certificate."""

    def __init__(self, hub: Hub, options: ListenOptions, run_folder: Path) -> None:
        self._hub = hub
        self._options = options
        self._file = run_folder / GATEWAY_ADDRESS
        self._server: asyncio.Server | None = None
        self._context: ssl.SSLContext | None = None
        self._loaded: tuple[object, ...] | None = None  # the files that were loaded or refused last
        self._checking: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Listen as soon as the port is free; return then. Raises ``OSError`` if it can never be used."""
        options = self._options
        complained = False
        while options.certificate is not None and self._context is None:
            self._context = self._load()
            if self._context is None:
                await asyncio.sleep(RETRY_S)
        while True:
            try:
                sock = self._bind()
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if not complained:
                    complained = True
                    self._write({"error": f"port {options.port} of {options.host} is in use"})
                    log.error(
                        "port %d of %s is in use; the gateway waits for it. Stop the program that "
                        "'ss -ltnp sport = :%d' shows, or choose another port with 'gpupool up --gateway-port'.",
                        options.port,
                        options.host,
                        options.port,
                    )
                await asyncio.sleep(RETRY_S)
        secure = self._context is not None
        self._server = await self._hub.loop.create_server(
            lambda: ClientConnection(self._hub),
            sock=sock,
            backlog=BACKLOG,
            ssl=self._context,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if secure else None,
        )
        host, port = sock.getsockname()[:2]
        self._write({"host": host, "port": port, "tls": secure})
        log.info("listening on %s:%d%s", host, port, " with TLS" if secure else "")
        if secure:
            self._check_later()

    def close(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()
        if self._checking is not None:
            self._checking.cancel()

    def _bind(self) -> socket.socket:
        options, port = self._options, self._options.port
        candidates = [port]
        if options.fallback:
            last = self._last_port()  # addresses of services stay the same after a restart
            candidates = [*([last] if last else []), *range(port, min(port + NEXT_PORTS, 65536)), 0]
        for candidate in candidates[:-1]:
            with suppress(OSError):
                return _listen(options.host, candidate)
        return _listen(options.host, candidates[-1])

    def _last_port(self) -> int | None:
        try:
            port = json.loads(self._file.read_text(encoding="utf-8"))["port"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return port if isinstance(port, int) and 0 < port < 65536 else None

    def _write(self, state: dict[str, object]) -> None:
        temporary = self._file.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(state | {"pid": os.getpid()}), encoding="utf-8")
            temporary.chmod(0o644)
            temporary.replace(self._file)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._file, error)

    # The certificate.

    def _check_later(self) -> None:
        self._checking = self._hub.loop.call_later(CERTIFICATE_CHECK_S, self._check)

    def _check(self) -> None:
        if self._state() != self._loaded and self._context is not None:
            self._load(self._context)
        self._check_later()

    def _state(self) -> tuple[object, ...]:
        found: list[object] = []
        for path in (self._options.certificate, self._options.key):
            with suppress(OSError):
                status = Path(path or "").stat()
                found.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return tuple(found)

    def _load(self, context: ssl.SSLContext | None = None) -> ssl.SSLContext | None:
        """Load the certificate into a context; return None (logged) if it cannot be used."""
        certificate, key = self._options.certificate, self._options.key
        before = self._loaded
        self._loaded = self._state()
        fresh = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        fresh.minimum_version = ssl.TLSVersion.TLSv1_2
        fresh.set_alpn_protocols(["http/1.1"])
        try:
            fresh.load_cert_chain(certificate or "", key)  # a pair that does not match must not replace the old one
            if context is not None:
                context.load_cert_chain(certificate or "", key)
        except (OSError, ssl.SSLError) as error:
            if self._loaded != before:
                log.error("the certificate %s cannot be used: %s", certificate, error)
            return None
        log.info("the certificate %s is loaded", certificate)
        return context or fresh


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
