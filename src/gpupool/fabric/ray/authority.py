"""The pool's own certificate authority and Ray's token: files on the head, made once."""

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
from gpupool.domain.heads import Head
from gpupool.domain.joining import Versions
from gpupool.fabric.ray import following
from gpupool.fabric.ray.surroundings import Secrets, write_secret
from gpupool.services.authority import Papers

LIFE_DAYS = 3650
AUTHORITY_KEY = "ca.key"
_REQUEST_LIMIT = 16 << 10


def versions() -> Versions:
    """What is installed here; ``ray`` is empty where it is not."""
    ray = ""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        ray = importlib.metadata.version("ray")
    return Versions(__version__, ray, platform.python_version())


class FolderAuthority:
    """Signs with the key in the head's folder; ``services.authority.Authority``."""

    def __init__(self, folder: Path, address: str, gcs_port: int, shown: Path | None = None) -> None:
        """``shown`` is the certificate of the API."""
        self._shown = shown
        self._secrets = Secrets(folder)
        self._key_file = folder / AUTHORITY_KEY
        self.address = (address, gcs_port)

    @property
    def versions(self) -> Versions:
        """What is installed on the head."""
        return versions()

    def fingerprint(self) -> str:
        """SHA-256 of the certificate of the API."""
        try:
            loaded = x509.load_pem_x509_certificate((self._shown or self._secrets.ca).read_bytes())
        except (OSError, ValueError) as error:
            raise GpupoolError(
                ErrorCode.INVALID_FILE, f"The certificate {self._shown} cannot be read: {error}.", "See --tls-cert."
            ) from error
        return loaded.fingerprint(hashes.SHA256()).hex()

    def establish(self, node: str) -> None:
        """Make what is missing: authority, token, and this machine's own certificate. Raises OSError."""
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
        """A certificate for the key of a signing request, for this node and address and nothing else in it."""
        request = _read(request_pem)
        ca = x509.load_pem_x509_certificate(self._secrets.ca.read_bytes())
        signer = serialization.load_pem_private_key(self._key_file.read_bytes(), None)
        if not isinstance(signer, ec.EllipticCurvePrivateKey):
            raise GpupoolError(ErrorCode.INVALID_FILE, f"{self._key_file} is no key of this pool.", "Restore it.")
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
        """The key that it signs with (PEM)."""
        try:
            return self._key_file.read_text("ascii")
        except (OSError, ValueError) as error:
            raise GpupoolError(
                ErrorCode.INVALID_FILE, f"The pool's key {self._key_file} cannot be read: {error}.", "Restore it."
            ) from error

    def checked(self, certificate_pem: str) -> str:
        """A certificate as it is written down: one, and nothing around it."""
        try:
            return _pem(x509.load_pem_x509_certificate(certificate_pem[:_REQUEST_LIMIT].encode()))
        except ValueError as error:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST, "This is no certificate of a head.", "Update this machine."
            ) from error

    def keep_heads(self, heads: Sequence[Head]) -> None:
        """Write them down beside the keys, where this machine's Ray looks. Raises OSError."""
        following.keep_heads(self._secrets.folder, heads)

    def key_of(self, request_pem: str) -> str:
        """SHA-256 of the public key in a signing request."""
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
    """This machine's key (the one that is there, or a new one) and a signing request for it, both PEM."""
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
    return GpupoolError(ErrorCode.INVALID_REQUEST, "This is no request for a certificate.", "Update this machine.")


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
