"""The pool's own certificate authority and Ray's token: files on the head, created once."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import importlib.metadata
import ipaddress
import platform
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpupool import __version__
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.heads import Head
from gpupool.domain.nodes.joining import Versions
from gpupool.fabric.ray import head_selection
from gpupool.fabric.ray.environment import Secrets, write_secret
from gpupool.services.ports.cluster import Papers

LIFE_DAYS = 3650
AUTHORITY_KEY = "ca.key"
_REQUEST_LIMIT = 16 << 10


def versions() -> Versions:
    """Return the installed versions; ``ray`` is empty if it is not installed."""
    ray = ""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        ray = importlib.metadata.version("ray")
    return Versions(__version__, ray, platform.python_version())


class FolderAuthority:
    """Signs with the key in the head's folder; implements ``services.ports.cluster.Authority``."""

    def __init__(self, folder: Path, address: str, gcs_port: int, shown: Path | None = None) -> None:
        """Use the key in ``folder``; ``shown`` is the certificate of the API."""
        self._shown = shown
        self._secrets = Secrets(folder)
        self._key_file = folder / AUTHORITY_KEY
        self.address = (address, gcs_port)

    @property
    def versions(self) -> Versions:
        """Return the versions installed on the head."""
        return versions()

    def fingerprint(self) -> str:
        """Return the SHA-256 of the API's certificate."""
        try:
            loaded = x509.load_pem_x509_certificate((self._shown or self._secrets.ca).read_bytes())
        except (OSError, ValueError) as error:
            raise GpupoolError(
                ErrorCode.INVALID_FILE, f"The certificate {self._shown} cannot be read: {error}.", "See --tls-cert."
            ) from error
        return loaded.fingerprint(hashes.SHA256()).hex()

    def establish(self, node: str) -> None:
        """Create missing files: authority, token, and this machine's certificate. Raises OSError."""
        self._secrets.folder.mkdir(mode=0o700, exist_ok=True)
        if not (self._key_file.exists() and self._secrets.ca.exists()):
            self._make_authority()
        if not self._secrets.token.exists():
            write_secret(self._secrets.token, secrets.token_hex(32).encode())
        key, request = new_request(self._secrets.key, node)
        papers = self.papers(node, self.address[0], request)
        write_secret(self._secrets.key, key)
        write_secret(self._secrets.certificate, papers.certificate.encode())

    def papers(self, node: str, address: str, request_pem: str) -> Papers:
        """Sign a certificate for the key in a request, for this node and address only."""
        request = _read(request_pem)
        ca = x509.load_pem_x509_certificate(self._secrets.ca.read_bytes())
        signer = serialization.load_pem_private_key(self._key_file.read_bytes(), None)
        if not isinstance(signer, ec.EllipticCurvePrivateKey):
            raise GpupoolError(ErrorCode.INVALID_FILE, f"{self._key_file} is not a key of this pool.", "Restore it.")
        names = [x509.DNSName(node), x509.DNSName("localhost"), *_addresses(address)]
        made = (
            _begin(_name(f"gpupool node {node}"[:64]), ca.subject, request.public_key())  # type: ignore[arg-type]
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .sign(signer, hashes.SHA256())
        )
        token = self._secrets.token.read_text("ascii")
        return Papers(_pem(made), _pem(ca), token)

    def secret_key(self) -> str:
        """Return the signing key (PEM)."""
        try:
            return self._key_file.read_text("ascii")
        except (OSError, ValueError) as error:
            raise GpupoolError(
                ErrorCode.INVALID_FILE, f"The pool's key {self._key_file} cannot be read: {error}.", "Restore it."
            ) from error

    def checked(self, certificate_pem: str) -> str:
        """Return a certificate in normal form: exactly one, without other text."""
        try:
            return _pem(x509.load_pem_x509_certificate(certificate_pem[:_REQUEST_LIMIT].encode()))
        except ValueError as error:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST, "The data is not a certificate of a head.", "Update this machine."
            ) from error

    def keep_heads(self, heads: Sequence[Head]) -> None:
        """Write the heads next to the keys, for this machine's Ray. Raises OSError."""
        head_selection.keep_heads(self._secrets.folder, heads)

    def keep_refused(self, names: Sequence[str]) -> None:
        """Write the removed nodes for this machine's bridge. Raises OSError."""
        head_selection.keep_refused(self._secrets.folder, names)

    def key_of(self, request_pem: str) -> str:
        """Return the SHA-256 of the public key in a signing request."""
        public = _read(request_pem).public_key()
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return hashlib.sha256(public.public_bytes(serialization.Encoding.DER, form)).hexdigest()

    def _make_authority(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"gpupool {secrets.token_hex(4)}")
        made = (
            _begin(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_secret(self._key_file, _private(key))
        write_secret(self._secrets.ca, _pem(made).encode())


def new_request(key_file: Path, node: str) -> tuple[bytes, str]:
    """Return this machine's key (existing or new) and a signing request for it, both PEM."""
    key: ec.EllipticCurvePrivateKey | None = None
    with contextlib.suppress(OSError, ValueError, TypeError):
        found = serialization.load_pem_private_key(key_file.read_bytes(), None)
        key = found if isinstance(found, ec.EllipticCurvePrivateKey) else None
    key = key or ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(_name(node[:64])).sign(key, hashes.SHA256())
    return _private(key), request.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _read(request_pem: str) -> x509.CertificateSigningRequest:
    try:
        request = x509.load_pem_x509_csr(request_pem[:_REQUEST_LIMIT].encode())
    except ValueError as error:
        raise _bad_request() from error
    if not request.is_signature_valid or not isinstance(request.public_key(), ec.EllipticCurvePublicKey):
        raise _bad_request()
    return request


def _bad_request() -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, "The data is not a certificate request.", "Update this machine.")


def _addresses(address: str) -> Iterator[x509.IPAddress]:
    for text in dict.fromkeys((address, "127.0.0.1", "::1")):
        try:
            yield x509.IPAddress(ipaddress.ip_address(text))
        except ValueError as error:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"'{text[:80]}' is not an address.",
                "Give it as a number: --address 10.0.0.7",
            ) from error


def _begin(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=LIFE_DAYS))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    pkcs8 = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, pkcs8, serialization.NoEncryption())


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")
