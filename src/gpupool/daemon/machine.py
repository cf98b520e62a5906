"""A machine of a pool over several machines: folders, addresses, and arguments of its processes."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path
from typing import Any

from gpupool.daemon.config import GATEWAY_PORT, MachineRole, PoolConfig
from gpupool.domain.errors import ErrorCode, GpupoolError

CLUSTER_DIR = "cluster"  # in the state folder: certificates and keys
NODES_DIR = "nodes"  # in the run folder: a socket for each node
AGENT_SOCKET = "agent.sock"
LEAD_FILE = "leader.json"  # in the run folder of a head: whether it leads
API_PORT = 8443
ANYWHERE = "192.0.2.1"  # a documentation address: shows which of our addresses would be used for the network
_TEMP_LIMIT = 42  # Ray adds 64 bytes for its sockets, whose names have a limit of 107


def secrets_dir(config: PoolConfig) -> Path:
    """Return the folder of certificates, keys and Ray's token."""
    return Path(config.state_dir) / CLUSTER_DIR


def temp_dir(config: PoolConfig) -> Path:
    """Return Ray's private folder for sockets and logs: in the run folder if its name is short enough."""
    folder = Path(config.run_dir) / "ray" / "t"
    if len(os.fsencode(folder)) <= _TEMP_LIMIT:
        return folder
    digest = hashlib.sha256(os.fsencode(config.state_dir)).hexdigest()[:10]
    return Path("/tmp") / f"gpupool-ray-{os.geteuid()}-{digest}" / "t"  # noqa: S108 - created with 0700, or refused


def lead_path(config: PoolConfig) -> Path:
    """Return the file in which a head's control plane records whether it leads."""
    return Path(config.run_dir) / LEAD_FILE


def gcs_address(config: PoolConfig) -> tuple[str, int]:
    """Return the address of Ray's GCS: on the head itself, or as the head reported it."""
    if config.role is MachineRole.HEAD:
        return own_address(config), config.cluster_port
    host, _, port = (config.head or "").rpartition(":")
    return host.strip("[]"), int(port or 0)


def own_address(config: PoolConfig) -> str:
    """Return this machine's address in the cluster. Raises ``GpupoolError`` (INVALID_REQUEST) if there is none."""
    if config.cluster_address is None:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "The address of this machine is unknown.", "Set it with --address."
        )
    return config.cluster_address


def gateway_arguments(config: PoolConfig) -> list[str]:
    """Return the arguments of the gateway: the API's address and certificate, or this machine only."""
    arguments = ["--state-dir", config.state_dir, "--run-dir", config.run_dir]
    arguments += ["--port", str(config.gateway_port or GATEWAY_PORT)]
    if config.gateway_port is None:
        arguments.append("--fallback")
    for network in config.trusted_proxies:
        arguments += ["--trusted-proxy", network]
    if config.listen is None:
        return arguments
    certificate, key = tls_files(config)
    host = config.listen.rpartition(":")[0].strip("[]") or "0.0.0.0"  # noqa: S104 - what `--listen :8443` asks for
    return [*arguments, "--host", host, "--tls-cert", str(certificate), "--tls-key", str(key)]


def tls_files(config: PoolConfig) -> tuple[Path, Path]:
    """Return certificate and key of the API: the administrator's, or the pool's own."""
    if config.tls_cert is not None and config.tls_key is not None:
        return Path(config.tls_cert), Path(config.tls_key)
    folder = Path(config.state_dir) / "tls"
    return folder / "cert.pem", folder / "key.pem"


def address_towards(host: str, port: int = 9) -> str | None:
    """Return the local address for connections to another machine; nothing is sent."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as sock:
            sock.connect(found[4])
            return str(sock.getsockname()[0])
    except OSError:
        return None


def ray_arguments(config: PoolConfig, node: str) -> list[str]:
    """Return the options of ``fabric.ray.node_process``."""
    options = ["--name", node, "--address", own_address(config), "--first-port", str(config.cluster_port)]
    options += ["--secrets", str(secrets_dir(config)), "--temp", str(temp_dir(config))]
    options += ["--agent-socket", f"{config.run_dir}/{AGENT_SOCKET}"]
    if config.role is MachineRole.NODE:
        options += ["--head", _written(gcs_address(config))]
    return options + _lead_option(config)


def bridge_arguments(config: PoolConfig, node: str) -> list[str]:
    """Return the options of ``fabric.ray.bridge``."""
    options = ["--gcs", _written(gcs_address(config)), "--nodes", f"{config.run_dir}/{NODES_DIR}"]
    options += ["--secrets", str(secrets_dir(config)), "--temp", str(temp_dir(config)), "--own", node]
    return options + _lead_option(config)


def _lead_option(config: PoolConfig) -> list[str]:
    """Return the option for a head if there can be several heads."""
    return ["--lead-file", str(lead_path(config))] if config.role is MachineRole.HEAD and config.database else []


def _written(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def need_packages(*, second_head: bool = False) -> None:
    """Raise ``GpupoolError`` (UNSUPPORTED) if Ray is not installed, or the PostgreSQL driver for a second head."""
    from importlib.util import find_spec

    wanted = [("A cluster", "Ray", "ray", "cluster")]
    if second_head:
        wanted.append(("A second head", "psycopg", "psycopg", "cluster,postgres"))
    for what, name, module, extras in wanted:
        if find_spec(module) is None:
            raise GpupoolError(
                ErrorCode.UNSUPPORTED,
                f"{what} needs {name}, which is not installed here.",
                f"Install it with: pip install 'gpupool[{extras}]'",
            )


def refuse_removed(config: PoolConfig) -> None:
    """Raise ``GpupoolError`` (NODE_REMOVED) on a machine that was removed from its cluster."""
    from gpupool.fabric.ray.head_selection import read_removal

    if (removal := read_removal(secrets_dir(config))) is not None:
        raise removal


def database_option(url: str) -> str | None:
    """Return the URL with the password file that libpq's variable names; a pool keeps no other variable.

    ``off`` means the pool's own file.
    """
    if url == "off":
        return None
    passfile = os.environ.get("PGPASSFILE")
    if passfile and "passfile=" not in url:
        from urllib.parse import quote

        url += f"{'&' if '?' in url else '?'}passfile={quote(str(full_path(passfile)))}"
    return url


def full_path(path: str | None) -> str | None:
    """Return an absolute path, for processes that run in another folder."""
    return None if path is None else str(Path(path).expanduser().absolute())


def establish(config: PoolConfig, node: str) -> None:
    """Create what a head needs before its processes start: its authority, token and certificate."""
    from gpupool.fabric.ray.authority import FolderAuthority

    need_packages()
    FolderAuthority(secrets_dir(config), *gcs_address(config)).establish(node)


def head_options(kept: PoolConfig, listen: str | None, address: str | None) -> dict[str, Any]:
    """Return a head's missing options: it listens for the other machines, with its own certificate.

    Raises WRONG_STATE on a node of another cluster, INVALID_REQUEST if this machine has no network address.
    """
    if kept.role is MachineRole.NODE:
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
            ErrorCode.INVALID_REQUEST, "This machine has no network address.", "Give one with --address."
        )
    return {
        "role": MachineRole.HEAD,
        "cluster_address": own,
        "listen": listen or kept.listen or f"0.0.0.0:{API_PORT}",
        "tls_self_signed": kept.tls_self_signed or kept.tls_cert is None,
    }
