"""The rules of a project, applied to a request: refuse it with the allowed values, or fill in defaults."""

from __future__ import annotations

import posixpath
from dataclasses import replace

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest, Placement, SpreadRule
from gpupool.domain.people.access import Project, ProjectRules
from gpupool.domain.units import MAX_DURATION_S, format_duration, format_permille
from gpupool.domain.work.time_windows import parse_windows
from gpupool.domain.work.workload import Limits

MAX_NODE_POOLS = 64
MAX_POOL_NAME_LENGTH = 255
MAX_QUEUED = 200_000
MAX_GPU_HOURS = 1_000_000_000
MAX_USER_WEIGHT = 1000


def check_rules(rules: ProjectRules) -> None:
    """Raise ``GpupoolError`` for invalid rules: INVALID_DURATION, INVALID_COUNT, INVALID_REQUEST."""
    for seconds in (rules.min_runtime_s, rules.max_time_limit_s):
        if seconds is not None and not 0 <= seconds <= MAX_DURATION_S:
            raise GpupoolError(ErrorCode.INVALID_DURATION, f"{seconds:g} s is not a valid limit.", "Give 10m or 12h.")
    if rules.max_gpus_permille is not None and rules.max_gpus_permille < 1:
        raise GpupoolError(ErrorCode.INVALID_COUNT, "The GPU limit of a replica must be above 0.", "Give 0.5.")
    if rules.max_queued is not None and not 1 <= rules.max_queued <= MAX_QUEUED:
        raise GpupoolError(
            ErrorCode.INVALID_COUNT,
            f"{rules.max_queued} is not a valid limit of queued replicas.",
            f"Give 1 to {MAX_QUEUED}.",
        )
    if any(mib is not None and mib < 1 for mib in (rules.workspace_mib, rules.user_workspace_mib)):
        raise GpupoolError(ErrorCode.INVALID_SIZE, "A limit of disk must be at least 1 MiB.", "Give 100G.")
    if any(hours is not None and not 0 <= hours <= MAX_GPU_HOURS for hours in (rules.gpu_hours, rules.user_gpu_hours)):
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "That is not a valid number of GPU hours.", f"Give 0 to {MAX_GPU_HOURS:,}."
        )
    weights_fit = all(0 < weight <= MAX_USER_WEIGHT for _, weight in rules.user_weights)
    if not weights_fit or not all(permille > 0 for _, permille in rules.user_quotas):
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "A user's weight or quota is not above 0, or too large.", "Give 0.5 or 2."
        )
    if len(rules.node_pools) > MAX_NODE_POOLS or not all(
        0 < len(pool) <= MAX_POOL_NAME_LENGTH for pool in rules.node_pools
    ):
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            f"A project has at most {MAX_NODE_POOLS} node pools.",
            "Give values of the node label 'pool'.",
        )
    if any(not folder.startswith("/") or posixpath.normpath(folder) != folder for folder in rules.volumes):
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "Volume folders must be absolute paths.", "Give /data.")
    parse_windows(rules.windows)


def resolve_limits(limits: Limits, project: Project) -> Limits:
    """Return the limits, with the project's longest time limit as the default.

    Raises ``GpupoolError(OVER_LIMIT)`` for a longer one.
    """
    longest = project.rules.max_time_limit_s
    if longest is None:
        return limits
    if limits.max_time_s is not None and limits.max_time_s > longest:
        asked, allowed = format_duration(limits.max_time_s), format_duration(longest)
        raise GpupoolError(
            ErrorCode.OVER_LIMIT,
            f"The time limit is {asked}; the project {project.name} allows {allowed}.",
            f"Request {allowed} or less.",
        )
    return replace(limits, max_time_s=longest if limits.max_time_s is None else limits.max_time_s)


def check_replica_gpus(least_permille: int, project: Project) -> None:
    """Raise ``GpupoolError(OVER_LIMIT)`` if one replica needs more than the project allows."""
    most = project.rules.max_gpus_permille
    if most is not None and least_permille > most:
        raise GpupoolError(
            ErrorCode.OVER_LIMIT,
            f"A replica needs {format_permille(least_permille)} GPUs; the project {project.name} allows "
            f"{format_permille(most)} for one replica.",
            "Request fewer GPUs for each replica, or use several replicas.",
        )


def resolve_placement(request: GpuRequest, project: Project, pool: SpreadRule, default: Placement) -> GpuRequest:
    """Return the request with the placement pack if the pool's default is one that the project may not use.

    Raises ``GpupoolError(FORBIDDEN)`` if it requests spread and the project, or the pool for it, refuses that.
    """
    if (project.rules.spread or pool) is SpreadRule.ALLOW:
        return request
    if request.placement is Placement.SPREAD:
        command = f"gpupool project set {project.name} --spread allow"
        raise GpupoolError(
            ErrorCode.FORBIDDEN,
            f"The placement spread is not allowed in the project {project.name}: it leaves less room for large "
            "workloads.",
            f"Omit it, or use `--placement pack`. Administrators allow it: `{command}`.",
        )
    return replace(request, placement=Placement.PACK) if default is Placement.SPREAD else request
