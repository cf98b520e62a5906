"""Joining and leaving the pool of a head, for ``gpupool join`` and ``gpupool leave``."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import ssl
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpupool.client.discovery import Location
from gpupool.client.transport import tls_pinning
from gpupool.client.transport.http import error_of_answer
from gpupool.client.transport.requests import ask
from gpupool.daemon.config import MachineRole, PoolConfig, config_path
from gpupool.daemon.folders import NODE_DIR, prepare_folders
from gpupool.daemon.machine import (
    AGENT_SOCKET,
    API_PORT,
    address_towards,
    database_option,
    lead_path,
    need_packages,
    secrets_dir,
)
from gpupool.daemon.process.record import read_record
from gpupool.domain.errors import NO_LEADER_CODES, ErrorCode, GpupoolError
from gpupool.domain.nodes.heads import Head, other_heads
from gpupool.domain.nodes.joining import JoinText
from gpupool.fabric.local.termination import end_programs
from gpupool.fabric.ray.head_selection import (
    MEMBER_FILE,
    REMOVED_FILE,
    HeadLead,
    keep_heads,
    read_heads,
    read_removal,
)
from gpupool.node.inventory.host import clean_node_name

RESPONSE_TIMEOUT_S = 30.0
HEARTBEAT_TIMEOUT_S = 120.0
LEAVE_TIMEOUT_S = 20.0
_POLL_S = 0.5
_ANSWER_LIMIT = 1 << 20
_FORGOTTEN = frozenset(
    {ErrorCode.UNAUTHENTICATED, ErrorCode.NODE_REMOVED}
)  # the pool does not know this machine any more
_TRY_NEXT_HEAD = NO_LEADER_CODES | {ErrorCode.POOL_UNREACHABLE, ErrorCode.DATABASE_UNREACHABLE}


@dataclass(frozen=True, slots=True)
class Membership:
    """The membership of this machine, stored in a file that only the pool's owner can read."""

    url: str
    certificate: str  # of the head, PEM: no other server is contacted
    node: str
    secret: str

    @classmethod
    def of(cls, config: PoolConfig) -> Membership:
        """Return the stored membership. Raises WRONG_STATE if this machine has not joined."""
        try:
            return cls(**json.loads((secrets_dir(config) / MEMBER_FILE).read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, "This machine is not a node of a cluster.", "See 'gpupool join --help'."
            ) from error

    def ask(self, what: str, heads: Sequence[Head] = (), **body: Any) -> dict[str, Any]:
        """Send this machine's request to the leader: ``standing``, ``leave`` or ``gone``. Raises ``GpupoolError``."""
        refusals: list[GpupoolError] = []
        for url, certificate in dict.fromkeys([(self.url, self.certificate), *((h.url, h.certificate) for h in heads)]):
            try:
                return post(url, certificate, f"/v1/members/{self.node}/{what}", {"secret": self.secret, **body})
            except GpupoolError as error:
                if error.code not in _TRY_NEXT_HEAD:
                    raise
                refusals.append(error)
        raise next((error for error in refusals if error.code is not ErrorCode.POOL_UNREACHABLE), refusals[0])


def join(config: PoolConfig, head: str, token: str, *, as_head: bool = False) -> PoolConfig:
    """Have this machine admitted and store the answer; return the options to start it with.

    ``config`` has the folders, and the node's name and address if they were chosen. With ``as_head`` it also has the
    listen address and certificate. Raises ``GpupoolError``: the head's error, UNSUPPORTED (no Ray, or no PostgreSQL),
    UNAUTHENTICATED (a bad token, or another head), FORBIDDEN (not a token for heads), WRONG_STATE.
    """
    need_packages(second_head=as_head)
    _require_unused(config)
    text = JoinText.read(token)
    if text is None:
        raise GpupoolError(
            ErrorCode.UNAUTHENTICATED,
            "The text is not a join token.",
            "Run 'gpupool join-token create' on the head.",
        )
    host, port = _split(head)
    certificate = _checked_certificate(host, port, text)
    wanted = replace(
        config,
        role=MachineRole.HEAD if as_head else MachineRole.NODE,
        node_name=clean_node_name(config.node_name or os.uname().nodename),
        cluster_address=config.cluster_address or address_towards(host, port),
        head_url=f"https://{host}:{port}" if ":" not in host else f"https://[{host}]:{port}",
    )
    if as_head:
        listen = config.listen or f"0.0.0.0:{API_PORT}"
        wanted = replace(wanted, listen=listen, tls_self_signed=config.tls_self_signed or config.tls_cert is None)
        _try_database(wanted, certificate, text)
    prepare_folders(wanted)
    return _admitted(wanted, certificate, text)


def _try_database(config: PoolConfig, certificate: str, text: JoinText) -> None:
    """Use the database of the pool before anything is changed.

    Raises ``GpupoolError``: INVALID_FILE (the file of the password), or what the database says.
    """
    from gpupool.store.backends.address import PostgresAddress
    from gpupool.store.pool.head_reports import check_usable

    try:
        url = post(config.head_url or "", certificate, "/v1/join/database", {"token": text.secret})["database"]
    except GpupoolError as error:
        if error.code is ErrorCode.NOT_FOUND:  # a head of an older release
            return
        raise
    address = PostgresAddress(database_option(url) or "", config.database_password_file)
    try:
        check_usable(address)
    except GpupoolError as error:
        if error.code is ErrorCode.INVALID_FILE:
            raise
        raise GpupoolError(
            error.code,
            f"This machine cannot use the database, so it cannot be a head. Nothing was changed. {error.message}",
            "Copy the file with the database's password from the head (mode 0600) and give it with"
            " --database-password-file; 'gpupool join-token create --head' shows its path.",
        ) from error


def _admitted(config: PoolConfig, certificate: str, text: JoinText) -> PoolConfig:
    from gpupool.daemon.cluster.heads import own_head
    from gpupool.fabric.ray.authority import AUTHORITY_KEY, new_request, versions
    from gpupool.fabric.ray.environment import Secrets, write_secret

    files = Secrets(secrets_dir(config))
    files.folder.mkdir(mode=0o700, exist_ok=True)
    key, request = new_request(files.key, config.node_name or "")
    write_secret(files.key, key)
    body: dict[str, Any] = {"token": text.secret, "node": config.node_name, "address": config.cluster_address}
    body |= {"versions": asdict(versions()), "certificate_request": request}
    if own := own_head(config, config.node_name or ""):
        body["head"] = {"url": own.url, "certificate": own.certificate, "gcs_port": own.gcs_port}
    got = post(config.head_url or "", certificate, "/v1/join", body)
    member = Membership(config.head_url or "", certificate, got["node"], got["secret"])
    write_secret(files.ca, got["ca"].encode())
    write_secret(files.certificate, got["certificate"].encode())
    write_secret(files.token, got["ray_token"].encode())
    write_secret(files.folder / MEMBER_FILE, json.dumps(asdict(member)).encode())
    (files.folder / REMOVED_FILE).unlink(missing_ok=True)
    keep_heads(files.folder, [Head.from_dict(head) for head in got.get("heads", ())])
    if config.role is MachineRole.HEAD:
        write_secret(files.folder / AUTHORITY_KEY, got["authority_key"].encode())
        return replace(config, head=None, head_url=None, database=database_option(got["database"]))
    gcs = f"[{got['ray_host']}]" if ":" in got["ray_host"] else got["ray_host"]
    return replace(config, head=f"{gcs}:{got['ray_port']}")


def wait_until_seen(config: PoolConfig, timeout_s: float = HEARTBEAT_TIMEOUT_S) -> dict[str, Any]:
    """Return the pool's view of this machine once it is up there, or after a timeout."""
    membership, deadline = Membership.of(config), time.monotonic() + timeout_s
    while True:
        found = membership.ask("standing", read_heads(secrets_dir(config)))
        if found["state"] not in {None, "down"} or time.monotonic() >= deadline:
            return found
        time.sleep(_POLL_S)


def leave(location: Location, *, force: bool = False) -> bool:
    """Remove this machine from its pool, stop its processes and delete its keys; return whether the pool removed it.

    Raises WRONG_STATE while work runs here, unless ``force``; then it leaves even if the head does not respond. The
    leader, or the only head, never leaves.
    """
    from gpupool.daemon.process.launch import stop

    config = PoolConfig.for_location(location)
    membership = Membership.of(config)
    if config.role is MachineRole.HEAD:
        _require_other_head(config, membership.node)
    try:
        membership.ask("leave", read_heads(secrets_dir(config)), force=force)
    except GpupoolError as error:
        if error.code not in _FORGOTTEN and not force:
            raise
    if force:
        with contextlib.suppress(OSError, EOFError, ValueError):  # the agent does not run
            asyncio.run(end_programs(Path(location.run_dir) / AGENT_SOCKET))
    stop(location)
    forgotten = _report_leave(membership, read_heads(secrets_dir(config)))
    shutil.rmtree(secrets_dir(config), ignore_errors=True)
    config_path(config.state_dir).unlink(missing_ok=True)
    return forgotten


def _require_other_head(config: PoolConfig, node: str) -> None:
    """Raise WRONG_STATE for the leader and for the only head: the pool would end with it."""
    record = read_record(config.state_dir)
    lead = HeadLead.read(lead_path(config)) if record is not None and record.alive else None
    if not other_heads(read_heads(secrets_dir(config)), node):
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            "This is the only head of its pool.",
            "Use 'gpupool join-token create --head'.",
        )
    if lead is not None and lead.leads:
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            "This machine leads its pool.",
            "Stop it with 'gpupool down', so that another head leads, start it again with 'gpupool up', and leave.",
        )


def _report_leave(membership: Membership, heads: Sequence[Head]) -> bool:
    """Tell the pool that this machine is gone, so that it removes it; return whether it did."""
    deadline = time.monotonic() + LEAVE_TIMEOUT_S
    while True:
        try:
            membership.ask("gone", heads)
        except GpupoolError as error:
            if error.code in _FORGOTTEN:
                return True
            if error.code is not ErrorCode.WRONG_STATE or time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        else:
            return True


def _require_unused(config: PoolConfig) -> None:
    record = read_record(config.state_dir)
    if record is not None and record.alive:
        raise GpupoolError(
            ErrorCode.POOL_ALREADY_RUNNING,
            "A pool already runs on this machine.",
            "Stop it first: 'gpupool down --stop-jobs', or 'gpupool leave' if it is a node.",
        )
    kept = Path(config.state_dir) / NODE_DIR / "replicas"
    member = config.role is MachineRole.NODE or read_removal(secrets_dir(config)) is not None
    if not member and kept.is_dir() and any(kept.iterdir()):
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            "Programs of an earlier pool still run on this machine.",
            "End them: 'gpupool up --background' and then 'gpupool down --stop-jobs'.",
        )


def _split(head: str) -> tuple[str, int]:
    text = head.removeprefix("https://").rstrip("/")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(API_PORT)
    if not host or not port.isdecimal() or int(port) > 65535:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"'{head[:80]}' is not the address of a head.", "Write HOST:PORT."
        )
    return host.strip("[]"), int(port)


def _checked_certificate(host: str, port: int, text: JoinText) -> str:
    certificate = tls_pinning.fetch_certificate(host, port)
    if not tls_pinning.matches_fingerprint(certificate, text.fingerprint):
        raise GpupoolError(
            ErrorCode.UNAUTHENTICATED,
            f"The server at {host}:{port} is not the head of this token: its certificate differs.",
            "Check the address. If the certificate of the head was renewed, create another token.",
        )
    return ssl.DER_cert_to_PEM_cert(certificate)


def post(url: str, certificate: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a request only to the holder of this certificate's key. Raises ``GpupoolError``."""
    connection = http.client.HTTPSConnection(
        url.removeprefix("https://"), timeout=RESPONSE_TIMEOUT_S, context=tls_pinning.pinned_context(certificate)
    )
    try:
        answer = ask(connection, "POST", path, body, limit=_ANSWER_LIMIT)
    except OSError as error:
        raise GpupoolError(
            ErrorCode.POOL_UNREACHABLE,
            f"The head at {url} does not answer: {error}.",
            "Check it with 'gpupool status' there.",
        ) from error
    finally:
        connection.close()
    if not answer.ok:
        raise error_of_answer(answer)
    return dict(answer.body)
