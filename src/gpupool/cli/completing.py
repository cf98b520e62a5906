"""What the shell may complete: names known to the pool. Silent when no pool answers, and never starts one."""

from __future__ import annotations

from typing import Any

TIMEOUT_S = 1.0


def workloads(incomplete: str) -> list[str]:
    """Names of live workloads."""
    return [n for n in _names("/v1/workloads?limit=1000", "workloads") if n.startswith(incomplete)]


def projects(incomplete: str) -> list[str]:
    """Names of projects."""
    return [n for n in _names("/v1/projects", "projects") if n.startswith(incomplete)]


def departments(incomplete: str) -> list[str]:
    """Names of departments."""
    return [n for n in _names("/v1/departments", "departments") if n.startswith(incomplete)]


def nodes(incomplete: str) -> list[str]:
    """Names of nodes."""
    return [n for n in _names("/v1/nodes", "nodes") if n.startswith(incomplete)]


def users(incomplete: str) -> list[str]:
    """Names of users."""
    return [n for n in _names("/v1/users", "users") if n.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Models of the pool's GPUs, as ``--model`` takes them."""
    found = {str(gpu["model"]).replace(" ", "-").lower() for gpu in _items("/v1/gpus", "gpus")}
    return sorted(model for model in found if model.startswith(incomplete.lower()))


def policies(incomplete: str) -> list[str]:
    """Compute policies."""
    return [name for name in ("guarantee", "cap", "none") if name.startswith(incomplete)]


def modes(incomplete: str) -> list[str]:
    """Sharing modes."""
    return [name for name in ("share", "mps", "mig", "whole", "advisory") if name.startswith(incomplete)]


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
    from gpupool.cli.fast.gate import LocalGate
    from gpupool.client.locate import Location, find_pool
    from gpupool.domain.errors import GpupoolError

    try:
        place = find_pool()
        if not isinstance(place, Location):
            return []
        answer = LocalGate(place.api_socket).call("GET", target, timeout_s=TIMEOUT_S)
    except (OSError, GpupoolError):
        return []
    return list(answer.body[collection]) if answer.ok else []
