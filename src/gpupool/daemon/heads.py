"""What a machine of a cluster is as a head: its certificate and addresses, and whether it leads, for its own Ray."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import structlog

from gpupool.api.tls import CertificateFiles, ensure_self_signed
from gpupool.daemon.cluster import lead_path, own_address, secrets_dir
from gpupool.daemon.config import PoolConfig, Role, is_loopback, write_atomically
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.heads import Head
from gpupool.fabric.ray.following import MEMBER_FILE, keep_heads, read_heads
from gpupool.fabric.ray.surroundings import Secrets, write_secret
from gpupool.services.joining import JoinService

ANY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound
log = structlog.get_logger("gpupool.heads")
_FILES_OF_THE_MACHINE = frozenset({"passfile"})


def own_head(config: PoolConfig, node: str) -> Head | None:
    """This machine as a head; None where it is none, or does not listen. Raises ``GpupoolError`` (INVALID_FILE)."""
    if config.role is not Role.HEAD or config.listen is None:
        return None
    host, address = listen_host(config), own_address(config)
    files = certificate(config)
    reached = address if host in ANY_ADDRESS else host
    port = config.listen.rpartition(":")[2]
    url = f"https://[{reached}]:{port}" if ":" in reached else f"https://{reached}:{port}"
    return Head(node, url, _first_of(files.certificate), address, config.cluster_port)


def listen_host(config: PoolConfig) -> str:
    """Where it listens: an address, or what stands for all of them."""
    return (config.listen or "").rpartition(":")[0].strip("[]")


def certificate_files(config: PoolConfig) -> CertificateFiles:
    """Where the API's certificate is: the administrator's, or the pool's own."""
    if config.tls_cert is not None and config.tls_key is not None:
        return CertificateFiles(Path(config.tls_cert), Path(config.tls_key))
    folder = Path(config.state_dir) / "tls"
    return CertificateFiles(folder / "cert.pem", folder / "key.pem")


def certificate(config: PoolConfig) -> CertificateFiles:
    """The same, made if it is the pool's own and not there. Raises ``GpupoolError`` (INVALID_FILE)."""
    files = certificate_files(config)
    if config.tls_cert is None:
        files.certificate.parent.mkdir(mode=0o700, exist_ok=True)
        host = listen_host(config)
        ensure_self_signed(files, (config.cluster_address or host) if host in ANY_ADDRESS else host)
    return files


def _first_of(path: Path) -> str:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.PEM).decode("ascii")
    except (OSError, ValueError) as error:
        raise GpupoolError(
            ErrorCode.INVALID_FILE, f"The certificate {path} cannot be read: {error}.", "See --tls-cert."
        ) from error


def database_for_others(url: str | None) -> str | None:
    """The URL by which other machines reach the database; None where they do not: a file, a socket, a loopback address.

    Files of this machine alone are left out of it.
    """
    parts = urlsplit(url or "")
    options = [(name, value) for name, value in parse_qsl(parts.query) if name not in _FILES_OF_THE_MACHINE]
    hosts = dict(options).get("host") or parts.hostname or ""
    if any(not host or host[0] in "/@" or host == "localhost" or is_loopback(host) for host in hosts.split(",")):
        return None
    return urlunsplit(parts._replace(query=urlencode(options, safe="/")))


async def enrol(config: PoolConfig, joining: JoinService, own: Head) -> None:
    """Let the first head be known as those that joined are, so that it can leave; nothing where it is.

    Raises ``GpupoolError``.
    """
    from gpupool.fabric.ray.authority import new_request

    files = Secrets(secrets_dir(config))
    kept = files.folder / MEMBER_FILE
    if kept.exists():
        return
    secret = await joining.enrol(own, new_request(files.key, own.name)[1])
    member = {"url": own.url, "certificate": own.certificate, "node": own.name, "secret": secret}
    try:
        write_secret(kept, json.dumps(member).encode())
    except OSError as error:
        log.warning("this head cannot leave", error=str(error))


def say_lead(config: PoolConfig, term: int, *, leads: bool) -> None:
    """Tell this machine's Ray whether its control plane leads. Raises OSError."""
    if config.role is Role.HEAD:
        write_atomically(lead_path(config), json.dumps({"leads": leads, "term": term}), 0o600)


def learn_heads(config: PoolConfig, heads: Sequence[Head]) -> None:
    """Keep what the database says of heads while this machine does not lead. Raises OSError."""
    folder = secrets_dir(config)
    if config.role is Role.HEAD and heads and read_heads(folder) != tuple(heads):
        keep_heads(folder, heads)
