"""Whether the server at an address is the pool: told by its certificate, before anything is said to it."""

from __future__ import annotations

import hashlib
import socket
import ssl

from gpupool.domain.errors import ErrorCode, GpupoolError

CONNECT_S = 10.0


def certificate_at(host: str, port: int) -> bytes:
    """The certificate a server shows (DER), trusted by nobody yet. Raises ``GpupoolError(POOL_UNREACHABLE)``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent over this connection: its certificate is compared
    try:
        with (
            socket.create_connection((host, port), timeout=CONNECT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return secure.getpeercert(binary_form=True) or b""
    except OSError as error:
        raise GpupoolError(
            ErrorCode.POOL_UNREACHABLE,
            f"Nothing that speaks TLS answers at {host}:{port}.",
            "See that the pool is up with --listen, and the address right.",
        ) from error


def vouched_for(host: str, port: int) -> bool:
    """Whether one of the system's authorities vouches for the server's certificate and name."""
    try:
        with (
            socket.create_connection((host, port), timeout=CONNECT_S) as plain,
            ssl.create_default_context().wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


def fingerprint_of(certificate: bytes) -> str:
    """SHA-256 of a certificate (DER): 64 hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


def fingerprint_of_pem(certificate: str) -> str:
    """The same of a certificate in PEM."""
    return fingerprint_of(ssl.PEM_cert_to_DER_cert(certificate))


def plain_fingerprint(fingerprint: str) -> str:
    """A fingerprint as ``fingerprint_of`` writes it, however somebody wrote it."""
    return fingerprint.replace(":", "").strip().lower().removeprefix("sha256")


def same_fingerprint(certificate: bytes, fingerprint: str) -> bool:
    """Whether a certificate has a fingerprint, however that is written."""
    return fingerprint_of(certificate) == plain_fingerprint(fingerprint)


def pinned(certificate_pem: str) -> ssl.SSLContext:
    """Trust exactly one certificate, whatever name it carries."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificate_pem)
    return context
