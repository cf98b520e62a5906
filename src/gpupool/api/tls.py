"""The pool's certificate: the administrator's, or one it signs itself."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpupool.domain.errors import ErrorCode, GpupoolError

LIFE_DAYS = 365


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate (with its chain) and its key, both PEM."""

    certificate: Path
    key: Path


def server_context(files: CertificateFiles) -> ssl.SSLContext:
    """TLS 1.2 or later with this certificate. Raises ``GpupoolError(INVALID_FILE)`` when it cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # Tickets come after the handshake: a client that reads on one thread and writes on another (as the synchronous
    # WebSocket client does) then does both at once on one OpenSSL connection, and now and then its request is lost.
    context.num_tickets = 0
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(files, error) from error
    return context


def fingerprint(certificate: Path) -> str:
    """SHA-256 of the (first) certificate in a PEM file: 64 hexadecimal digits.

    Raises ``GpupoolError(INVALID_FILE)``.
    """
    try:
        loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise _unusable(CertificateFiles(certificate, certificate), error) from error
    return loaded.fingerprint(hashes.SHA256()).hex()


def ensure_self_signed(files: CertificateFiles, host: str) -> str:
    """The fingerprint of the certificate in ``files``; a missing or expired one is made for ``host`` and this machine.

    Valid one year; the key is readable by its owner alone. Raises ``GpupoolError(INVALID_FILE)`` when the files cannot
    be written or read.
    """
    if not (files.certificate.exists() and files.key.exists()) or _expired(files):
        try:
            _write_self_signed(files, host)
        except OSError as error:
            raise _unusable(files, error) from error
    return fingerprint(files.certificate)


def _expired(files: CertificateFiles) -> bool:
    try:
        loaded = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    except (OSError, ValueError) as error:
        raise _unusable(files, error) from error
    return loaded.not_valid_after_utc <= _now()


def _write_self_signed(files: CertificateFiles, host: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _self_signed(key, host)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(files.key, pem, 0o600)
    _write(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _self_signed(key: ec.EllipticCurvePrivateKey, host: str) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpupool {socket.gethostname()}"[:64])])
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=LIFE_DAYS))
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _names(host: str) -> list[x509.GeneralName]:
    """The listen address, this machine's names, and localhost."""
    addresses = [host, "127.0.0.1", "::1", *_own_addresses()]
    names = [socket.gethostname(), socket.getfqdn(), "localhost"]
    found: list[x509.GeneralName] = []
    for address in addresses:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            names.append(address)
    found.extend(x509.DNSName(name) for name in dict.fromkeys(names) if name and name.isascii())
    return list(dict.fromkeys(found))


def _own_addresses() -> list[str]:
    try:
        return [str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(socket.gethostname(), None)]
    except OSError:
        return []  # a machine that cannot look up its own name


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a new file with ``mode`` from the first moment and put it in place at once."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _unusable(files: CertificateFiles, error: Exception) -> GpupoolError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return GpupoolError(
        ErrorCode.INVALID_FILE,
        f"The certificate {files.certificate} or its key cannot be used: {reason}.",
        "Give a PEM certificate and its key that this user may read.",
    )
