"""Self-signed certificates, and fingerprints of certificates."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import socket
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE_DAYS = 365


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 of the first certificate in a PEM file, as hexadecimal digits. Raises OSError, ValueError."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).fingerprint(hashes.SHA256()).hex()


def expired(certificate: Path) -> bool:
    """Return whether the first certificate in a PEM file has expired. Raises OSError, ValueError."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc <= _now()


def create(certificate: Path, key_file: Path, host: str) -> None:
    """Write a new key and a certificate for ``host``; only the owner can read the key. Raises OSError."""
    key = ec.generate_private_key(ec.SECP256R1())
    signed = _self_signed(key, host)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(key_file, pem, 0o600)
    _write(certificate, signed.public_bytes(serialization.Encoding.PEM), 0o644)


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
    """Return the listen address, the names of this machine, and localhost."""
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
        return []  # this machine cannot resolve its own name


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file atomically; it has ``mode`` from the start."""
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
