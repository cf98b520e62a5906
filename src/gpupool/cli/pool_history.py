"""What ran in a pool lately, for the simulator."""

from __future__ import annotations

from typing import Any

from gpupool.cli.output import tell
from gpupool.cli.pool import PAGE, Pool, segment
from gpupool.domain.access import Project
from gpupool.domain.gpu import Node
from gpupool.simulate.pooltrace import (
    MOST_WORKLOADS,
    needs_replicas,
    pool_jobs,
    pool_nodes,
    pool_projects,
)
from gpupool.simulate.values import Trace

REPLICAS_AT_ONCE = 1000


def history(pool: Pool, since: float, now: float) -> tuple[Trace, tuple[Node, ...], tuple[Project, ...]]:
    """The work submitted since a time, with the pool's nodes and projects as they are now; raises ``GpupoolError``."""
    found = _workloads_since(pool, since)
    replicas = {w["id"]: _replicas(pool, w) for w in found if needs_replicas(w)}
    nodes, projects = pool.get("nodes")["nodes"], pool.get("projects")["projects"]
    return pool_jobs(found, replicas, now), pool_nodes(nodes), pool_projects(projects)


def _workloads_since(pool: Pool, since: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = None
    while len(found) < MOST_WORKLOADS:
        page = pool.get("workloads", {"all": True, "limit": PAGE, "cursor": cursor})
        found += [workload for workload in page["workloads"] if workload["created_at"] >= since]
        cursor = page["next_cursor"]
        if cursor is None or page["workloads"][-1]["created_at"] < since:
            return found
    tell(f"only the latest {MOST_WORKLOADS:,} workloads are taken")
    return found[:MOST_WORKLOADS]


def _replicas(pool: Pool, workload: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < workload["completions"]:
        path = f"workloads/{segment(workload['id'])}"
        rows = pool.get(path, {"replicas_from": found[-1]["index"] + 1 if found else 0})["replicas"]
        found += rows
        if len(rows) < REPLICAS_AT_ONCE:
            break
    return found
