"""Identify the pool's server by its certificate before anything is sent to it."""

from __future__ import annotations

import hashlib
import socket
import ssl

from gpupool.domain.errors import ErrorCode, GpupoolError

CONNECT_TIMEOUT_S = 10.0


def fetch_certificate(host: str, port: int) -> bytes:
    """Return the certificate that a server presents (DER), unverified. Raises ``GpupoolError(POOL_UNREACHABLE)``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent over this connection; its certificate is compared
    try:
        with (
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return secure.getpeercert(binary_form=True) or b""
    except OSError as error:
        raise GpupoolError(
            ErrorCode.POOL_UNREACHABLE,
            f"No TLS server answers at {host}:{port}.",
            "Check that the pool was started with --listen, and its address.",
        ) from error


def is_trusted_by_system(host: str, port: int) -> bool:
    """Return whether one of the system's authorities verifies the server's certificate and name."""
    try:
        with (
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S) as plain,
            ssl.create_default_context().wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


def fingerprint_of(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate (DER): 64 hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


def fingerprint_of_pem(certificate: str) -> str:
    """Return the SHA-256 of a certificate in PEM."""
    return fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate))


def normalize_fingerprint(fingerprint: str) -> str:
    """Return a fingerprint in the form of ``fingerprint_of``, from any usual notation."""
    return fingerprint.replace(":", "").strip().lower().removeprefix("sha256")


def matches_fingerprint(certificate: bytes, fingerprint: str) -> bool:
    """Return whether a certificate has a fingerprint, in any usual notation."""
    return fingerprint_of(certificate) == normalize_fingerprint(fingerprint)


def pinned_context(certificate_pem: str) -> ssl.SSLContext:
    """Return a context that trusts exactly one certificate, with any host name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate_pem)
    return context
