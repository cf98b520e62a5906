"""Load the recent workloads of a pool, for the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpupool.cli.output import notify
from gpupool.cli.transport.pool import PAGE, PoolClient, quote_segment
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Gpu, GpuRequest, Node, NodeReport
from gpupool.domain.people.access import Department, Project
from gpupool.domain.work.workload import WorkloadKind
from gpupool.simulate.values import Trace, TraceJob

REPLICA_PAGE = 1000
MAX_WORKLOADS = 50_000
MAX_REPLICAS = 200_000
Json = Mapping[str, Any]
_BOUNDS = ("quota_permille", "over_quota", "limit_permille", "user_limit_permille", "weight", "department")


def load_history(pool: PoolClient, since: float, now: float) -> tuple[Trace, tuple[Node, ...], tuple[Project, ...]]:
    """Return the workloads submitted since a time, with the pool's present nodes and projects.

    Raises ``GpupoolError``.
    """
    found = _workloads_since(pool, since)
    replicas = {w["id"]: _replicas(pool, w) for w in found if needs_replicas(w)}
    nodes, projects = pool.get("nodes")["nodes"], pool.get("projects")["projects"]
    departments = pool_departments(pool.get("departments")["departments"])
    trace = replace(pool_jobs(found, replicas, now), departments=departments)
    return trace, pool_nodes(nodes), pool_projects(projects)


def _workloads_since(pool: PoolClient, since: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = None
    while len(found) < MAX_WORKLOADS:
        page = pool.get("workloads", {"all": True, "limit": PAGE, "cursor": cursor})
        found += [workload for workload in page["workloads"] if workload["created_at"] >= since]
        cursor = page["next_cursor"]
        if cursor is None or page["workloads"][-1]["created_at"] < since:
            return found
    notify(f"only the latest {MAX_WORKLOADS:,} workloads are used")
    return found[:MAX_WORKLOADS]


def _replicas(pool: PoolClient, workload: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < workload["completions"]:
        path = f"workloads/{quote_segment(workload['id'])}"
        rows = pool.get(path, {"replicas_from": found[-1]["index"] + 1 if found else 0})["replicas"]
        found += rows
        if len(rows) < REPLICA_PAGE:
            break
    return found


def needs_replicas(workload: Json) -> bool:
    """Return whether the listing is not enough for a workload: several replicas that start independently."""
    return workload["completions"] > 1 and not workload.get("gang")


def pool_jobs(workloads: Iterable[Json], replicas: Mapping[str, Iterable[Json]], now: float) -> Trace:
    """Return the jobs of listed workloads; ``replicas`` are those of the ones that ``needs_replicas``, by id.

    Running work counts as if it ended now. Work that never ran is skipped, because its run time is unknown. Raises
    ``GpupoolError`` if no job is left.
    """
    jobs: list[TraceJob] = []
    skipped = 0
    for workload in workloads:
        found = _jobs_of(workload, replicas.get(workload["id"]), now)
        skipped += not found
        jobs += found
        if len(jobs) > MAX_REPLICAS:
            raise GpupoolError(ErrorCode.TOO_LARGE, f"More than {MAX_REPLICAS:,} runs.", "Use a shorter --since.")
    if not jobs:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "No job with a GPU ran in that time.", "Use a longer --since.")
    return Trace(tuple(sorted(jobs, key=lambda job: job.submitted_s)), skipped)


def pool_nodes(nodes: Iterable[Json]) -> tuple[Node, ...]:
    """Return the machines that the pool lists, healthy and empty, without those that have no GPU."""
    return tuple(_node(node) for node in nodes if node["gpus"])


def pool_projects(projects: Iterable[Json]) -> tuple[Project, ...]:
    """Return the projects with their quotas, limits and weights."""
    return tuple(Project(p["name"], **{name: p[name] for name in _BOUNDS if p.get(name) is not None}) for p in projects)


def pool_departments(departments: Iterable[Json]) -> tuple[Department, ...]:
    """Return the departments with their quotas, limits and weights."""
    return tuple(Department(d["name"], d["quota_permille"], d["weight"], d["limit_permille"]) for d in departments)


def _jobs_of(workload: Json, replicas: Iterable[Json] | None, now: float) -> list[TraceJob]:
    if workload["kind"] == WorkloadKind.EXEC or not workload["gpus"]["count"]:
        return []
    runs = [workload] if replicas is None else replicas
    spans = [(run["started_at"], run["finished_at"] or now) for run in runs if run["started_at"] is not None]
    return [_job(workload, max(0.0, end - start)) for start, end in spans]


def _job(workload: Json, duration_s: float) -> TraceJob:
    asked, gang = workload["gpus"], workload.get("gang")
    request = GpuRequest(
        asked["count"],
        asked["permille"],
        asked["memory_mib"],
        tuple(asked["models"]),
        tuple(sorted(asked["labels"].items())),
    )
    return TraceJob(
        workload["created_at"],
        duration_s,
        request,
        workload["project"],
        workload["user"],
        preemptible=workload["preemptible"],
        cpus=workload["cpus"] or 0.0,
        memory_mib=workload["memory_mib"] or 0,
        members=gang["workers"] if gang else 1,
        priority=workload["priority"],
        checkpoint_s=workload.get("checkpoint_s"),
        windows=tuple(workload.get("windows") or ()),
    )


def _node(node: Json) -> Node:
    gpus = tuple(Gpu(gpu["uuid"], gpu["index"], gpu["model"], gpu["memory_mib"], emulated=True) for gpu in node["gpus"])
    report = NodeReport(
        node["name"], node["cpus"], node["memory_mib"], gpus, emulated=True, boot_id="", agent_version=""
    )
    return Node(report, labels=dict(node["labels"]))
