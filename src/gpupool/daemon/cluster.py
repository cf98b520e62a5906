"""What a pool over several machines has on each of them: folders, addresses, and what its children are started with."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from typing import Any

from gpupool.daemon.config import PoolConfig, Role
from gpupool.domain.errors import ErrorCode, GpupoolError

CLUSTER_DIR = "cluster"  # in the state folder: certificates and keys
NODES_DIR = "nodes"  # in the run folder: a socket for each node
AGENT_SOCKET = "agent.sock"
LEAD_FILE = "leader.json"  # in the run folder of a head: whether it leads
API_PORT = 8443
ANYWHERE = "192.0.2.1"  # for documentation: from which of our addresses would we speak to the world?
_TEMP_LIMIT = 42  # Ray adds 64 bytes for its sockets, whose names have a limit of 107


def secrets_dir(config: PoolConfig) -> Path:
    """Where certificates, keys and Ray's token are."""
    return Path(config.state_dir) / CLUSTER_DIR


def temp_dir(config: PoolConfig) -> Path:
    """Ray's folder for sockets and logs, in one that is ours alone: in the run folder if its name is short enough."""
    folder = Path(config.run_dir) / "ray" / "t"
    if len(os.fsencode(folder)) <= _TEMP_LIMIT:
        return folder
    digest = hashlib.sha256(os.fsencode(config.state_dir)).hexdigest()[:10]
    return Path("/tmp") / f"gpupool-ray-{os.geteuid()}-{digest}" / "t"  # noqa: S108 - made with 0700, or refused


def lead_path(config: PoolConfig) -> Path:
    """Where the control plane of a head says whether it leads."""
    return Path(config.run_dir) / LEAD_FILE


def gcs_address(config: PoolConfig) -> tuple[str, int]:
    """Where Ray's GCS is: on the head itself, or where the head said."""
    if config.role is Role.HEAD:
        return own_address(config), config.cluster_port
    host, _, port = (config.head or "").rpartition(":")
    return host.strip("[]"), int(port or 0)


def own_address(config: PoolConfig) -> str:
    """This machine's address in the cluster. Raises ``GpupoolError`` (INVALID_REQUEST) when there is none."""
    if config.cluster_address is None:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "It is not known which address this machine has.", "Give it with --address."
        )
    return config.cluster_address


def address_towards(host: str, port: int = 9) -> str | None:
    """The address from which this machine would speak to another; nothing is sent."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as sock:
            sock.connect(found[4])
            return str(sock.getsockname()[0])
    except OSError:
        return None


def ray_arguments(config: PoolConfig, node: str) -> list[str]:
    """The options of ``fabric.ray.node_process``."""
    options = ["--name", node, "--address", own_address(config), "--first-port", str(config.cluster_port)]
    options += ["--secrets", str(secrets_dir(config)), "--temp", str(temp_dir(config))]
    options += ["--agent-socket", f"{config.run_dir}/{AGENT_SOCKET}"]
    if config.role is Role.NODE:
        options += ["--head", _written(gcs_address(config))]
    return options + _lead_option(config)


def bridge_arguments(config: PoolConfig, node: str) -> list[str]:
    """The options of ``fabric.ray.bridge``."""
    options = ["--gcs", _written(gcs_address(config)), "--nodes", f"{config.run_dir}/{NODES_DIR}"]
    options += ["--secrets", str(secrets_dir(config)), "--temp", str(temp_dir(config)), "--own", node]
    return options + _lead_option(config)


def _lead_option(config: PoolConfig) -> list[str]:
    """On a head that is not the only one there can be."""
    return ["--lead-file", str(lead_path(config))] if config.role is Role.HEAD and config.database else []


def _written(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def need_ray() -> None:
    """Raise ``GpupoolError`` (UNSUPPORTED) where Ray is not installed."""
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            "A cluster needs Ray, which is not installed here.",
            "Install it with: pip install 'gpupool[cluster]'",
        )


def need_postgres() -> None:
    """Raise ``GpupoolError`` (UNSUPPORTED) where the driver of PostgreSQL is not installed."""
    from importlib.util import find_spec

    if find_spec("psycopg") is None:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            "A second head needs psycopg, which is not installed here.",
            "Install it with: pip install 'gpupool[cluster,postgres]'",
        )


def establish(config: PoolConfig, node: str) -> None:
    """Make what a head needs before its processes start: its authority, token and certificate."""
    from gpupool.fabric.ray.authority import FolderAuthority

    need_ray()
    FolderAuthority(secrets_dir(config), *gcs_address(config)).establish(node)


def head_options(kept: PoolConfig, listen: str | None, address: str | None) -> dict[str, Any]:
    """The options of a head that were not given: it listens for the other machines, with a certificate of its own.

    Raises WRONG_STATE on a node of another cluster, INVALID_REQUEST when no address of this machine is to be found.
    """
    if kept.role is Role.NODE:
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            f"This machine is a node of the pool at {kept.head_url}.",
            "Leave that first with 'gpupool leave'.",
        )
    host = (listen or kept.listen or "").rpartition(":")[0].strip("[]")
    named = host if host not in {"", "0.0.0.0", "::"} else None  # noqa: S104 - compared, not bound
    own = address or kept.cluster_address or named or address_towards(ANYWHERE)
    if own is None:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "This machine has no address on a network.", "Give one with --address."
        )
    return {
        "role": Role.HEAD,
        "cluster_address": own,
        "listen": listen or kept.listen or f"0.0.0.0:{API_PORT}",
        "tls_self_signed": kept.tls_self_signed or kept.tls_cert is None,
    }
