"""A pool's own history as a trace: what its API lists, as jobs, nodes and projects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpupool.domain.access import Project
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Gpu, GpuRequest, Node, NodeReport
from gpupool.domain.workload import WorkloadKind
from gpupool.simulate.values import Job, Trace

MOST_WORKLOADS = 50_000
MOST_REPLICAS = 200_000
Json = Mapping[str, Any]
_BOUNDS = ("quota_permille", "over_quota", "limit_permille", "user_limit_permille", "weight", "department")


def needs_replicas(workload: Json) -> bool:
    """Whether the listing does not say enough of a workload: several replicas that start each for itself."""
    return workload["completions"] > 1 and not workload.get("gang")


def pool_jobs(workloads: Iterable[Json], replicas: Mapping[str, Iterable[Json]], now: float) -> Trace:
    """The jobs of listed workloads; ``replicas`` are those of the ones that ``needs_replicas``, by id.

    What still runs counts as if it ended now; what never ran is skipped, as nobody knows how long it would have.
    Raises ``GpupoolError`` when nothing is left.
    """
    jobs: list[Job] = []
    skipped = 0
    for workload in workloads:
        found = _jobs_of(workload, replicas.get(workload["id"]), now)
        skipped += not found
        jobs += found
        if len(jobs) > MOST_REPLICAS:
            raise GpupoolError(ErrorCode.TOO_LARGE, f"More than {MOST_REPLICAS:,} runs.", "Name a shorter --since.")
    if not jobs:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "Nothing with a GPU ran in that time.", "Name a longer --since.")
    return Trace(tuple(sorted(jobs, key=lambda job: job.submitted_s)), skipped)


def pool_nodes(nodes: Iterable[Json]) -> tuple[Node, ...]:
    """The machines that the pool lists, healthy and empty, those without a GPU left out."""
    return tuple(_node(node) for node in nodes if node["gpus"])


def pool_projects(projects: Iterable[Json]) -> tuple[Project, ...]:
    """The projects with their quotas, limits and weights."""
    return tuple(Project(p["name"], **{name: p[name] for name in _BOUNDS if p.get(name) is not None}) for p in projects)


def _jobs_of(workload: Json, replicas: Iterable[Json] | None, now: float) -> list[Job]:
    if workload["kind"] == WorkloadKind.EXEC or not workload["gpus"]["count"]:
        return []
    runs = [workload] if replicas is None else replicas
    spans = [(run["started_at"], run["finished_at"] or now) for run in runs if run["started_at"] is not None]
    return [_job(workload, max(0.0, end - start)) for start, end in spans]


def _job(workload: Json, duration_s: float) -> Job:
    asked, gang = workload["gpus"], workload.get("gang")
    request = GpuRequest(
        asked["count"],
        asked["permille"],
        asked["memory_mib"],
        tuple(asked["models"]),
        tuple(sorted(asked["labels"].items())),
    )
    return Job(
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
    )


def _node(node: Json) -> Node:
    gpus = tuple(Gpu(gpu["uuid"], gpu["index"], gpu["model"], gpu["memory_mib"], emulated=True) for gpu in node["gpus"])
    report = NodeReport(
        node["name"], node["cpus"], node["memory_mib"], gpus, emulated=True, boot_id="", agent_version=""
    )
    return Node(report, labels=dict(node["labels"]))
