"""Addresses of pools and how they are trusted: a unix socket, or https with a token."""

from __future__ import annotations

import contextlib
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gpupool.client.discovery import Remote, find_pool
from gpupool.client.transport import tls_pinning
from gpupool.client.transport.tls_socket import DuplexTlsSocket
from gpupool.domain.errors import ErrorCode, GpupoolError

_DEFAULT_PORT = 443


@dataclass(frozen=True, slots=True)
class UnixEndpoint:
    """A pool on this machine."""

    path: str

    @property
    def present(self) -> bool:
        """Return whether a socket file exists (its server may have crashed)."""
        return Path(self.path).exists()


@dataclass(frozen=True, slots=True)
class TlsEndpoint:
    """A pool over the network.

    Its certificate is checked against ``ca_file`` (an authority, or the pool's own certificate), or must have the
    SHA-256 ``fingerprint``, or must equal ``certificate`` (PEM), or is verified by the system's authorities. ``login``:
    it is one of the user's logins, so the pool's other heads are learned.
    """

    url: str
    token: str = field(repr=False)
    ca_file: str | None = None
    fingerprint: str | None = None
    certificate: str | None = field(default=None, repr=False)
    login: bool = False

    @classmethod
    def from_remote(cls, place: Remote, fingerprint: str | None = None) -> TlsEndpoint:
        """Create an endpoint from a discovered pool."""
        return cls(place.url, place.token, place.ca_file, fingerprint, place.certificate, place.login)

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or _DEFAULT_PORT

    def context(self) -> ssl.SSLContext:
        """Return the TLS context that verifies the server. Its sockets can be read and written at the same time.

        Raises ``GpupoolError(INVALID_FILE, POOL_UNREACHABLE, UNAUTHENTICATED)``.
        """
        context = self._verifying_context()
        context.sslsocket_class = DuplexTlsSocket
        return context

    def _verifying_context(self) -> ssl.SSLContext:
        if self.fingerprint is not None:
            return _pinned(tls_pinning.fetch_certificate(*self.address), self.fingerprint)
        if self.certificate is not None:
            return tls_pinning.pinned_context(self.certificate)
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise GpupoolError(
                ErrorCode.INVALID_FILE, f"The file {self.ca_file} cannot be used to check the pool.", f"{error}"
            ) from error


Endpoint = UnixEndpoint | TlsEndpoint


def newer_login(endpoint: Endpoint) -> TlsEndpoint | None:
    """Return the endpoint with another token if the user has logged in at this pool again, else None."""
    with contextlib.suppress(GpupoolError):
        found = resolve_endpoint()
        if isinstance(found, TlsEndpoint) and isinstance(endpoint, TlsEndpoint) and found.url == endpoint.url:
            return found if found != endpoint else None
    return None


def resolve_endpoint(
    socket_path: str | os.PathLike[str] | None = None,
    *,
    url: str | None = None,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    fingerprint: str | None = None,
) -> Endpoint:
    """Return the given endpoint, else the one of the environment and this machine.

    Raises ``GpupoolError``: POOL_UNREACHABLE when there is none, INVALID_REQUEST or UNAUTHENTICATED for a URL that
    cannot be used.
    """
    if socket_path is not None:
        return UnixEndpoint(os.path.abspath(os.fspath(socket_path)))  # noqa: PTH100 - links must not be resolved
    if url is not None:
        return _endpoint_for_url(url, token, None if ca_file is None else os.fspath(ca_file), fingerprint)
    found = find_pool()
    if found is None:
        raise GpupoolError(
            ErrorCode.POOL_UNREACHABLE, "No pool has been started here.", "Start one with 'gpupool up --background'."
        )
    if isinstance(found, Remote):
        return TlsEndpoint.from_remote(found, fingerprint)
    return UnixEndpoint(found.api_socket)


def _endpoint_for_url(url: str, token: str | None, ca_file: str | None, fingerprint: str | None) -> TlsEndpoint:
    if not url.startswith("https://"):
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "The URL must start with https://.", "Example: https://gpu1:8443."
        )
    token = token or os.environ.get("GPUPOOL_TOKEN")
    if not token:
        raise GpupoolError(
            ErrorCode.UNAUTHENTICATED,
            "A pool over the network requires a token.",
            "Give token=..., or set GPUPOOL_TOKEN.",
        )
    return TlsEndpoint(url.rstrip("/"), token, ca_file, fingerprint)


def _pinned(certificate: bytes, fingerprint: str) -> ssl.SSLContext:
    """Return a context that trusts exactly one certificate, with any host name."""
    if not tls_pinning.matches_fingerprint(certificate, fingerprint):
        raise GpupoolError(
            ErrorCode.UNAUTHENTICATED,
            "The server's certificate is not the pool's: its fingerprint differs.",
            "Ask the administrator for the fingerprint; do not continue if the certificate was not changed.",
        )
    return tls_pinning.pinned_context(ssl.DER_cert_to_PEM_cert(certificate))
