"""Complete names for the shell from the pool. No answer gives no names, and no pool is started."""

from __future__ import annotations

from typing import Any

TIMEOUT_S = 1.0


def workloads(incomplete: str) -> list[str]:
    """Return names of live workloads."""
    return [n for n in _names("/v1/workloads?limit=1000", "workloads") if n.startswith(incomplete)]


def services(incomplete: str) -> list[str]:
    """Return names of services."""
    return [n for n in _names("/v1/services", "services") if n.startswith(incomplete)]


def workspaces(incomplete: str) -> list[str]:
    """Return names of workspaces."""
    return [n for n in _names("/v1/workspaces", "workspaces") if n.startswith(incomplete)]


def projects(incomplete: str) -> list[str]:
    """Return names of projects."""
    return [n for n in _names("/v1/projects", "projects") if n.startswith(incomplete)]


def departments(incomplete: str) -> list[str]:
    """Return names of departments."""
    return [n for n in _names("/v1/departments", "departments") if n.startswith(incomplete)]


def nodes(incomplete: str) -> list[str]:
    """Return names of nodes."""
    return [n for n in _names("/v1/nodes", "nodes") if n.startswith(incomplete)]


def users(incomplete: str) -> list[str]:
    """Return names of users."""
    return [n for n in _names("/v1/users", "users") if n.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Return the GPU models of the pool, in the form of ``--gpu-model``."""
    found = {str(gpu["model"]).replace(" ", "-").lower() for gpu in _items("/v1/gpus", "gpus")}
    return sorted(model for model in found if model.startswith(incomplete.lower()))


def policies(incomplete: str) -> list[str]:
    """Return compute policies."""
    return [name for name in ("guarantee", "cap", "none") if name.startswith(incomplete)]


def modes(incomplete: str) -> list[str]:
    """Return sharing modes."""
    from gpupool.domain.nodes.sharing import Sharing

    return [name.value for name in Sharing if name.startswith(incomplete)]


BY_OPTION = {
    "project": projects,
    "department": departments,
    "model": models,
    "lease": workloads,
    "after": workloads,
    "compute": policies,
    "sharing": modes,
}


def _names(target: str, collection: str) -> list[str]:
    return list(dict.fromkeys(str(item["name"]) for item in _items(target, collection)))


def _items(target: str, collection: str) -> list[dict[str, Any]]:
    from gpupool.cli.transport.local import LocalTransport
    from gpupool.client.discovery import Location, find_pool
    from gpupool.domain.errors import GpupoolError

    try:
        place = find_pool()
        if not isinstance(place, Location):
            return []
        answer = LocalTransport(place).call("GET", target, timeout_s=TIMEOUT_S)
    except (OSError, GpupoolError):
        return []
    return list(answer.body[collection]) if answer.ok else []
