"""The readiness check of a standby head: ``status``, ``doctor``, metrics and warnings show its result.

The head checks itself every ten seconds and records the result in the database. A head that cannot reach the database
cannot record that, so the leader treats a missing report as a fault (``services.heads``).
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpupool.daemon.cluster.heads import certificate_files, own_head
from gpupool.daemon.config import PoolConfig
from gpupool.daemon.machine import secrets_dir
from gpupool.domain.errors import GpupoolError
from gpupool.domain.nodes.heads import Head
from gpupool.domain.units import format_duration
from gpupool.fabric.ray.environment import Secrets
from gpupool.fabric.ray.head_selection import read_heads
from gpupool.store.pool.head_reports import DatabaseView, probe

CHECK_EVERY_S = 10.0
MAX_CLOCK_DIFFERENCE_S = 5.0
EXPIRES_SOON_S = 7 * 86400.0


def check(config: PoolConfig, node: str) -> list[str]:
    """Return why this machine could not take over, one sentence each; record that in the database if possible."""
    address = config.database_address()
    if address is None:
        return ["This head has no PostgreSQL database."]
    try:
        own = own_head(config, node)
    except GpupoolError as error:
        return [error.message]
    if own is None:
        return ["This machine does not listen for other machines (--listen)."]
    known = read_heads(secrets_dir(config))
    local = [*_certificate_faults(config, time.time()), *_key_faults(config)]
    return probe(address, node, lambda view: [*database_faults(view, own, known), *local])


def database_faults(view: DatabaseView, own: Head, known: Sequence[Head]) -> list[str]:
    """Return the faults of the database's content; ``known`` are the heads recorded on this machine."""
    return [*_clock_faults(view.ahead_s), *_own_faults(view, own), *_address_faults(view, known)]


def _clock_faults(ahead_s: float) -> Iterator[str]:
    if abs(ahead_s) > MAX_CLOCK_DIFFERENCE_S:
        side = "ahead of" if ahead_s > 0 else "behind"
        yield f"Its clock is {format_duration(abs(ahead_s))} {side} the clock of the database: synchronise both (NTP)."


def _own_faults(view: DatabaseView, own: Head) -> Iterator[str]:
    listed = next((head for head in view.heads if head.name == own.name), None)
    if listed is None:
        yield "This machine is not in the list of heads: join again with 'gpupool join --as-head'."
        return
    if (listed.url, listed.gcs) != (own.url, own.gcs):
        yield f"It listens at {own.url}, but other machines use {listed.url}: leave and join again."
    if listed.certificate != own.certificate:
        yield "Its certificate differs from the one that other machines have: leave and join again."


def _address_faults(view: DatabaseView, known: Sequence[Head]) -> Iterator[str]:
    missing = sorted({name for name in view.nodes if not _is_address(view.addresses.get(name, ""))})
    if missing:
        yield f"It does not have the address of {', '.join(missing[:3])}{' and others' if len(missing) > 3 else ''}."
    if {head.name for head in known} != {head.name for head in view.heads}:
        yield "Its list of heads is not up to date with the database."


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _key_faults(config: PoolConfig) -> Iterator[str]:
    from gpupool.fabric.ray.authority import AUTHORITY_KEY

    key = secrets_dir(config) / AUTHORITY_KEY
    if not key.is_file():
        yield f"It does not have the key of the pool's authority ({key}): leave and join again."


def _certificate_faults(config: PoolConfig, now: float) -> Iterator[str]:
    secrets = Secrets(secrets_dir(config))
    for what, path in (
        ("certificate", certificate_files(config).certificate),
        ("certificate for the cluster", secrets.certificate),
        ("certificate of the pool's authority", secrets.ca),
    ):
        if (fault := certificate_fault(what, path, now)) is not None:
            yield fault


def certificate_fault(what: str, path: Path, now: float) -> str | None:
    """Return the fault of a certificate at a time; None if it is valid and does not expire soon."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        return f"Its {what} {path} cannot be read: {error}."
    begins, ends = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    if now < begins:
        return f"Its {what} {path} is not valid yet: check its clock."
    if now >= ends:
        return f"Its {what} {path} has expired: renew it."
    if ends - now < EXPIRES_SOON_S:
        return f"Its {what} {path} expires in {format_duration(ends - now)}: renew it."
    return None
