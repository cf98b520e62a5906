"""A machine as a head of a cluster: its certificate and addresses, and its leadership for its own Ray."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import structlog

from gpupool.api.server.tls import CertificateFiles, ensure_self_signed
from gpupool.daemon.config import MachineRole, PoolConfig, is_loopback, write_atomically
from gpupool.daemon.machine import lead_path, own_address, secrets_dir, tls_files
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.heads import Head, HeadIdentity, MemberKey
from gpupool.domain.nodes.joining import RemovedMember, refused_names
from gpupool.domain.people.access import secret_hash
from gpupool.fabric.ray.environment import Secrets, write_secret
from gpupool.fabric.ray.head_selection import MEMBER_FILE, keep_heads, keep_refused, read_heads, read_member
from gpupool.node.inventory.host import clean_node_name
from gpupool.services.cluster.joining import JoinService

ANY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound
log = structlog.get_logger("gpupool.heads")
_FILES_OF_THE_MACHINE = frozenset({"passfile"})


def node_name(config: PoolConfig) -> str:
    """Return the name of this machine's node."""
    return clean_node_name(config.node_name or os.uname().nodename)


def own_head(config: PoolConfig, node: str) -> Head | None:
    """Return this machine as a head, or None (also without --listen). Raises ``GpupoolError`` (INVALID_FILE)."""
    if config.role is not MachineRole.HEAD or config.listen is None:
        return None
    host, address = listen_host(config), own_address(config)
    files = certificate(config)
    reached = address if host in ANY_ADDRESS else host
    port = config.listen.rpartition(":")[2]
    url = f"https://[{reached}]:{port}" if ":" in reached else f"https://{reached}:{port}"
    return Head(node, url, _first_of(files.certificate), address, config.cluster_port)


def listen_host(config: PoolConfig) -> str:
    """Return the address it listens on, or the one that stands for all addresses."""
    return (config.listen or "").rpartition(":")[0].strip("[]")


def certificate_files(config: PoolConfig) -> CertificateFiles:
    """Return the API's certificate files: the administrator's, or the pool's own."""
    return CertificateFiles(*tls_files(config))


def certificate(config: PoolConfig) -> CertificateFiles:
    """Return the API's certificate files; create the pool's own if missing. Raises ``GpupoolError`` (INVALID_FILE)."""
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
    """Return the database URL for other machines; None for a file, a socket or a loopback address.

    Options that name files of this machine are removed from it.
    """
    parts = urlsplit(url or "")
    options = [(name, value) for name, value in parse_qsl(parts.query) if name not in _FILES_OF_THE_MACHINE]
    hosts = dict(options).get("host") or parts.hostname or ""
    if any(not host or host[0] in "/@" or host == "localhost" or is_loopback(host) for host in hosts.split(",")):
        return None
    return urlunsplit(parts._replace(query=urlencode(options, safe="/")))


def passfile_of(url: str | None) -> str | None:
    """Return libpq's password file that a database URL names; None if it names none."""
    return dict(parse_qsl(urlsplit(url or "").query)).get("passfile")


async def enrol(config: PoolConfig, joining: JoinService, own: Head) -> None:
    """Make the first head a member like those that joined; do nothing if it is one already.

    Raises ``GpupoolError``.
    """
    from gpupool.fabric.ray.authority import new_request

    files = Secrets(secrets_dir(config))
    kept = files.folder / MEMBER_FILE
    known = read_member(files.folder)
    if known is not None and await joining.knows(own.name, known[1]):
        return
    secret = secrets.token_urlsafe(32)
    member = {"url": own.url, "certificate": own.certificate, "node": own.name, "secret": secret}
    try:
        write_secret(kept, json.dumps(member).encode())
    except OSError as error:
        log.warning("this head cannot leave", error=str(error))
        return
    # The file comes first: a head whose secret is not in the database yet may lead, one with another secret may not.
    await joining.enrol(own, new_request(files.key, own.name)[1], secret)


def identity(config: PoolConfig, node: str) -> HeadIdentity | None:
    """Return the proof to the database that this machine may lead; None if it is not a head of a cluster."""
    if config.role is not MachineRole.HEAD:
        return None
    member = read_member(secrets_dir(config))
    return HeadIdentity(node) if member is None else HeadIdentity(member[0], secret_hash(member[1]))


def write_lead(config: PoolConfig, term: int, *, leads: bool) -> None:
    """Tell this machine's Ray whether its control plane leads. Raises OSError."""
    if config.role is MachineRole.HEAD:
        write_atomically(lead_path(config), json.dumps({"leads": leads, "term": term}), 0o600)


def store_heads(
    config: PoolConfig, heads: Sequence[Head], removed: Iterable[RemovedMember], members: Iterable[MemberKey]
) -> None:
    """Store the database's list of heads and removed machines while this machine does not lead. Raises OSError."""
    if config.role is not MachineRole.HEAD or not heads:
        return
    folder = secrets_dir(config)
    if read_heads(folder) != tuple(heads):
        keep_heads(folder, heads)
    keep_refused(folder, refused_names(removed, (member.node for member in members)))
