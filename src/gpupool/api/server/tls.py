"""The pool's certificate: given by the administrator, or self-signed."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate (with its chain) and its key, both PEM."""

    certificate: Path
    key: Path


def server_context(files: CertificateFiles) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or later; raises ``GpupoolError(INVALID_FILE)`` for an unusable certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # Tickets arrive after the handshake. A client that reads in one thread and writes in another, like the synchronous
    # WebSocket client, would then do both at once on one OpenSSL connection, and sometimes its request would be lost.
    context.num_tickets = 0
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(files, error) from error
    return context


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 of the first certificate in a PEM file, as 64 hexadecimal digits.

    Raises ``GpupoolError(INVALID_FILE)``.
    """
    from gpupool.api.server import self_signed  # a pool without TLS does not have to load cryptography

    try:
        return self_signed.fingerprint(certificate)
    except (OSError, ValueError) as error:
        raise _unusable(CertificateFiles(certificate, certificate), error) from error


def ensure_self_signed(files: CertificateFiles, host: str) -> str:
    """Return the fingerprint of the certificate in ``files``; create one for ``host`` if missing or expired.

    It is valid for one year, and only its owner can read the key. Raises ``GpupoolError(INVALID_FILE)`` if the files
    cannot be written or read.
    """
    from gpupool.api.server import self_signed  # for the same reason

    try:
        if not (files.certificate.exists() and files.key.exists()) or self_signed.expired(files.certificate):
            self_signed.create(files.certificate, files.key, host)
    except (OSError, ValueError) as error:
        raise _unusable(files, error) from error
    return fingerprint(files.certificate)


def _unusable(files: CertificateFiles, error: Exception) -> GpupoolError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return GpupoolError(
        ErrorCode.INVALID_FILE,
        f"The certificate {files.certificate} or its key cannot be used: {reason}.",
        "Give a PEM certificate and its key that this user may read.",
    )
