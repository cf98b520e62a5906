"""A machine joins the pool of a head, and leaves it: what ``gpupool join`` and ``gpupool leave`` do."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpupool.client import trust
from gpupool.client.locate import Location, connect_unix
from gpupool.daemon.cluster import (
    AGENT_SOCKET,
    API_PORT,
    address_towards,
    lead_path,
    need_postgres,
    need_ray,
    secrets_dir,
)
from gpupool.daemon.config import PoolConfig, Role, config_path
from gpupool.daemon.folders import NODE_DIR, prepare_folders
from gpupool.daemon.record import read_record
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.heads import Head, others
from gpupool.domain.joining import JoinText
from gpupool.domain.supervision import ProcessPhase
from gpupool.fabric.ray.following import MEMBER_FILE, Lead, keep_heads, read_heads
from gpupool.node.inventory.host import clean_node_name

ANSWER_S = 30.0
UP_WAIT_S = 120.0
GONE_WAIT_S = 20.0
END_GRACE_S = 10.0
_LOOK_S = 0.5
_ANSWER_LIMIT = 1 << 20
_ASK_ANOTHER = frozenset({ErrorCode.POOL_UNREACHABLE, ErrorCode.NOT_LEADING, ErrorCode.DATABASE_UNREACHABLE})


@dataclass(frozen=True, slots=True)
class Membership:
    """How this machine is known to its pool: kept in a file that only the pool's owner reads."""

    url: str
    certificate: str  # of the head, PEM: nobody else is spoken to
    node: str
    secret: str

    @classmethod
    def of(cls, config: PoolConfig) -> Membership:
        """What was kept when this machine joined. Raises WRONG_STATE when it has not."""
        try:
            return cls(**json.loads((secrets_dir(config) / MEMBER_FILE).read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, "This machine is not a node of a cluster.", "See 'gpupool join --help'."
            ) from error

    def ask(self, what: str, heads: Sequence[Head] = (), **body: Any) -> dict[str, Any]:
        """Speak for oneself, to whichever head leads: ``standing``, ``leave`` or ``gone``. Raises ``GpupoolError``."""
        refusals: list[GpupoolError] = []
        for url, certificate in dict.fromkeys([(self.url, self.certificate), *((h.url, h.certificate) for h in heads)]):
            try:
                return post(url, certificate, f"/v1/members/{self.node}/{what}", {"secret": self.secret, **body})
            except GpupoolError as error:
                if error.code not in _ASK_ANOTHER:
                    raise
                refusals.append(error)
        raise next((error for error in refusals if error.code is not ErrorCode.POOL_UNREACHABLE), refusals[0])


def join(config: PoolConfig, head: str, token: str, *, as_head: bool = False) -> PoolConfig:
    """Have this machine let in and write down what it was given; returns the options to start it with.

    ``config`` has the folders, and the node's name and address if they were chosen; with ``as_head`` where it listens
    and its certificate, too. Raises ``GpupoolError``: what the head said, UNSUPPORTED (no Ray, or no PostgreSQL),
    UNAUTHENTICATED (a bad token, or not the head it is for), FORBIDDEN (not one that makes heads), WRONG_STATE.
    """
    need_ray()
    if as_head:
        need_postgres()
    _need_unused(config)
    text = JoinText.read(token)
    if text is None:
        raise GpupoolError(
            ErrorCode.UNAUTHENTICATED, "This is no join token.", "'gpupool join-token create' on the head prints one."
        )
    host, port = _split(head)
    certificate = _checked_certificate(host, port, text)
    wanted = replace(
        config,
        role=Role.HEAD if as_head else Role.NODE,
        node_name=clean_node_name(config.node_name or os.uname().nodename),
        cluster_address=config.cluster_address or address_towards(host, port),
        head_url=f"https://{host}:{port}" if ":" not in host else f"https://[{host}]:{port}",
    )
    if as_head:
        listen = config.listen or f"0.0.0.0:{API_PORT}"
        wanted = replace(wanted, listen=listen, tls_self_signed=config.tls_self_signed or config.tls_cert is None)
    prepare_folders(wanted)
    return _admitted(wanted, certificate, text)


def _admitted(config: PoolConfig, certificate: str, text: JoinText) -> PoolConfig:
    from gpupool.daemon.heads import own_head
    from gpupool.fabric.ray.authority import AUTHORITY_KEY, new_request, versions
    from gpupool.fabric.ray.surroundings import Secrets, write_secret

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
    keep_heads(files.folder, [Head.from_dict(head) for head in got.get("heads", ())])
    if config.role is Role.HEAD:
        write_secret(files.folder / AUTHORITY_KEY, got["authority_key"].encode())
        return replace(config, head=None, head_url=None, database=got["database"])
    gcs = f"[{got['ray_host']}]" if ":" in got["ray_host"] else got["ray_host"]
    return replace(config, head=f"{gcs}:{got['ray_port']}")


def wait_until_seen(config: PoolConfig, timeout_s: float = UP_WAIT_S) -> dict[str, Any]:
    """How the pool sees this machine once it is up there, or after a while."""
    membership, deadline = Membership.of(config), time.monotonic() + timeout_s
    while True:
        found = membership.ask("standing", read_heads(secrets_dir(config)))
        if found["state"] not in {None, "down"} or time.monotonic() >= deadline:
            return found
        time.sleep(_LOOK_S)


def leave(location: Location, *, force: bool = False) -> bool:
    """Have this machine forgotten by its pool, stop its processes and drop its keys; whether the pool forgot it.

    Raises WRONG_STATE while work runs here, unless ``force``; then it leaves even if the head cannot be asked. A head
    that leads, or is the only one, never leaves.
    """
    from gpupool.daemon.launch import stop

    config = PoolConfig.for_location(location)
    membership = Membership.of(config)
    if config.role is Role.HEAD:
        _need_another(config, membership.node)
    try:
        membership.ask("leave", read_heads(secrets_dir(config)), force=force)
    except GpupoolError as error:
        if error.code is not ErrorCode.UNAUTHENTICATED and not force:  # which says that it is not known any more
            raise
    if force:
        end_programs(Path(location.run_dir) / AGENT_SOCKET)
    stop(location)
    forgotten = _say_gone(membership, read_heads(secrets_dir(config)))
    shutil.rmtree(secrets_dir(config), ignore_errors=True)
    config_path(config.state_dir).unlink(missing_ok=True)
    return forgotten


def _need_another(config: PoolConfig, node: str) -> None:
    """Raise WRONG_STATE for the head that leads, and for the only one: with it the pool would go."""
    record = read_record(config.state_dir)
    lead = Lead.read(lead_path(config)) if record is not None and record.alive else None
    if not others(read_heads(secrets_dir(config)), node):
        raise GpupoolError(
            ErrorCode.WRONG_STATE, "This is the only head of its pool.", "'gpupool join-token create --head' makes one."
        )
    if lead is not None and lead.leads:
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            "This machine leads its pool.",
            "Stop it with 'gpupool down', so that another head leads, start it again with 'gpupool up', and leave.",
        )


def _say_gone(membership: Membership, heads: Sequence[Head]) -> bool:
    """Have the pool forget this machine, as soon as it has seen that it is gone; whether it did."""
    deadline = time.monotonic() + GONE_WAIT_S
    while True:
        try:
            membership.ask("gone", heads)
        except GpupoolError as error:
            if error.code is ErrorCode.UNAUTHENTICATED:
                return True
            if error.code is not ErrorCode.WRONG_STATE or time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)
        else:
            return True


def end_programs(agent: Path) -> None:
    """Have the agent of this machine end all programs, and wait until they have; nothing when it does not run."""
    with contextlib.suppress(OSError, ValueError, KeyError), socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(ANSWER_S)
        connect_unix(sock, str(agent))
        with sock.makefile("rwb") as stream:
            while live := [
                status["key"] for status in _ask_agent(stream, "list") if status["phase"] != ProcessPhase.EXITED
            ]:
                for key in live:
                    _ask_agent(stream, "stop", key=key, grace_s=END_GRACE_S)
                time.sleep(_LOOK_S)


def _ask_agent(stream: Any, method: str, **params: Any) -> Any:
    stream.write(json.dumps({"id": 1, "method": method, "params": params}).encode() + b"\n")
    stream.flush()
    return json.loads(stream.readline())["result"]


def _need_unused(config: PoolConfig) -> None:
    record = read_record(config.state_dir)
    if record is not None and record.alive:
        raise GpupoolError(
            ErrorCode.POOL_ALREADY_RUNNING,
            "A pool runs on this machine already.",
            "Stop it first: 'gpupool down --stop-jobs', or 'gpupool leave' where it is a node.",
        )
    kept = Path(config.state_dir) / NODE_DIR / "replicas"
    if config.role is not Role.NODE and kept.is_dir() and any(kept.iterdir()):
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            "Programs of the pool that was on this machine are still there.",
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
    certificate = trust.certificate_at(host, port)
    if not trust.same_fingerprint(certificate, text.fingerprint):
        raise GpupoolError(
            ErrorCode.UNAUTHENTICATED,
            f"What answers at {host}:{port} is not the head that this token is for: its certificate differs.",
            "Check the address. If the head's certificate was renewed, make another token.",
        )
    return ssl.DER_cert_to_PEM_cert(certificate)


def post(url: str, certificate: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask the head, and nobody but the holder of this certificate's key. Raises ``GpupoolError``."""
    connection = http.client.HTTPSConnection(
        url.removeprefix("https://"), timeout=ANSWER_S, context=trust.pinned(certificate)
    )
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read(_ANSWER_LIMIT))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise GpupoolError(
            ErrorCode.POOL_UNREACHABLE,
            f"The head at {url} does not answer: {error}.",
            "Look at it with 'gpupool status'.",
        ) from error
    finally:
        connection.close()
    if response.status >= http.client.BAD_REQUEST:
        raise GpupoolError.from_dict(answer.get("error", {}))
    return dict(answer)
