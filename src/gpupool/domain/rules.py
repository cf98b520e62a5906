"""What the rules of a project say of a request: refused with what is allowed, or filled in."""

from __future__ import annotations

import posixpath
from dataclasses import replace

from gpupool.domain.access import Project, ProjectRules
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import MAX_DURATION_S, format_duration, format_permille
from gpupool.domain.windows import parse_windows
from gpupool.domain.workload import Limits

MOST_POOLS = 64
MOST_POOL_NAME = 255


def check_rules(rules: ProjectRules) -> None:
    """Raise ``GpupoolError`` for rules that cannot be meant: INVALID_DURATION, INVALID_COUNT, INVALID_REQUEST."""
    for seconds in (rules.min_runtime_s, rules.max_time_limit_s):
        if seconds is not None and not 0 <= seconds <= MAX_DURATION_S:
            raise GpupoolError(ErrorCode.INVALID_DURATION, f"{seconds:g} s is no possible bound.", "Give 10m or 12h.")
    if rules.max_gpus_permille is not None and rules.max_gpus_permille < 1:
        raise GpupoolError(ErrorCode.INVALID_COUNT, "A project whose work may have no GPU runs nothing.", "Give 0.5.")
    if len(rules.node_pools) > MOST_POOLS or not all(0 < len(pool) <= MOST_POOL_NAME for pool in rules.node_pools):
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"Node pools are at most {MOST_POOLS} names.", "Give values of the label pool."
        )
    if any(not folder.startswith("/") or posixpath.normpath(folder) != folder for folder in rules.volumes):
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, "Volumes lie in folders that are named by their whole paths.", "Give /data."
        )
    parse_windows(rules.windows)


def settled_limits(limits: Limits, project: Project) -> Limits:
    """The limits with the project's longest time where none was asked for.

    Raises ``GpupoolError(OVER_LIMIT)`` for a longer one.
    """
    longest = project.rules.max_time_limit_s
    if longest is None:
        return limits
    if limits.max_time_s is not None and limits.max_time_s > longest:
        asked, allowed = format_duration(limits.max_time_s), format_duration(longest)
        raise GpupoolError(
            ErrorCode.OVER_LIMIT,
            f"A time of {asked} is asked for; the project {project.name} allows {allowed}.",
            f"Ask for {allowed} or less.",
        )
    return replace(limits, max_time_s=longest if limits.max_time_s is None else limits.max_time_s)


def check_gpus(least_permille: int, project: Project) -> None:
    """Raise ``GpupoolError(OVER_LIMIT)`` where one replica needs more than the project allows."""
    most = project.rules.max_gpus_permille
    if most is not None and least_permille > most:
        raise GpupoolError(
            ErrorCode.OVER_LIMIT,
            f"It needs {format_permille(least_permille)} GPU at once; the project {project.name} allows "
            f"{format_permille(most)} for one replica.",
            "Ask for less for each replica; there may be several of them.",
        )
