"""The results of a simulation as plain numbers, and as a table with a row for each job."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpupool.domain.people.access import Project
from gpupool.scheduling.fairness.water_filling import fill
from gpupool.simulate.values import Fate, Record

_HOUR_PERMILLE_S = 3600.0 * 1000
COLUMNS = (
    "submitted_s",
    "project",
    "user",
    "gpus",
    "gpu_permille",
    "members",
    "duration_s",
    "wait_s",
    "delay_s",
    "preemptions",
    "wasted_gpu_s",
    "impossible",
)


def fair_levels(capacity: float, asked: Mapping[str, int], projects: Sequence[Project]) -> dict[str, float]:
    """Return what each project would hold, in thousandths, if GPUs were divisible: quotas first, then by weight.

    A project without a quota counts as quota 0 if other projects have one. Departments and decayed usage are ignored.
    """
    names = [project.name for project in projects]
    want = np.array([float(asked.get(name, 0)) for name in names])
    quota = np.array([float(project.quota_permille or 0) for project in projects])
    weight = np.array([project.weight for project in projects])
    owed = np.minimum(quota, want)
    pot, room = np.zeros(len(names), np.int64), np.array([capacity])
    given = fill(room, pot, owed, quota) if owed.sum() > capacity else owed
    given = given + fill(np.maximum(room - given.sum(), 0.0), pot, want - given, weight)
    return dict(zip(names, given.tolist(), strict=True))


def share_errors(record: Record) -> list[float]:
    """Return for each sample the part of the capacity that other projects hold than fair shares give, from 0 to 1."""
    return [_error(record, sample.held, sample.asked) for sample in record.samples]


def _error(record: Record, held: Mapping[str, int], asked: Mapping[str, int]) -> float:
    capacity = float(record.capacity_permille)
    levels = fair_levels(capacity, asked, record.projects)
    missing = sum(max(0.0, level - held.get(name, 0)) for name, level in levels.items())
    free = max(0.0, capacity - sum(held.values()))
    return max(0.0, missing - free) / capacity if capacity else 0.0


def summary(record: Record) -> dict[str, Any]:
    """Return all figures of a run: shares are of all GPUs from 0 to 1, waiting times seconds, amounts GPU hours.

    Waiting times are those of the jobs that started; ``left_waiting`` never did. ``allocated`` is averaged between the
    first submission and the last; ``stranded`` and ``share_error`` (see ``fairness``) are means of the samples.
    """
    capacity, fates, errors = record.capacity_permille, record.fates, share_errors(record)
    room = capacity * record.window_s
    return {
        "gpus": capacity // 1000,
        "jobs": len(fates),
        "impossible": sum(bool(fate.impossible) for fate in fates),
        "allocated": _ratio(record.busy_permille_s, room),
        "stranded": _ratio(sum(s.stranded_permille for s in record.samples), capacity * len(record.samples)),
        "span_s": round(record.window_s, 3),
        "all_ended_after_s": round(record.ended_s - fates[0].job.submitted_s, 3) if fates else 0.0,
        "decisions": record.decisions,
        "starts": record.starts,
        "preemptions_per_hour": _per_hour(sum(fate.preemptions for fate in fates), record),
        "evictions": dict(sorted(record.evictions.items())),
        "share_error": round(float(np.mean(errors)), 6) if errors else 0.0,
        **_group(fates),
        "projects": {name: _group(found) for name, found in sorted(_by_project(fates).items())},
        "reasons": sorted({fate.impossible for fate in fates if fate.impossible})[:20],
        "wait_quantiles_s": _quantiles(fates),
        "over_time": _series(record, errors),
    }


def waits(fates: Sequence[Fate]) -> dict[str, float]:
    """Return the waiting times in seconds: mean, percentiles and the longest; zeros if nothing started."""
    return _spread([fate.wait_s for fate in fates if fate.wait_s is not None])


def delays(fates: Sequence[Fate]) -> dict[str, float]:
    """Return the seconds by which jobs ended later than alone: waiting, evictions and their cost."""
    return _spread([fate.delay_s for fate in fates if fate.delay_s is not None])


def _spread(times: Sequence[float]) -> dict[str, float]:
    found = times or [0.0]
    p50, p90, p99 = np.percentile(found, [50, 90, 99])
    spread = {"mean": np.mean(found), "p50": p50, "p90": p90, "p99": p99, "max": max(found)}
    return {name: round(float(value), 3) for name, value in spread.items()}


def _group(fates: Sequence[Fate]) -> dict[str, Any]:
    return {
        "submitted": len(fates),
        "finished": sum(fate.finished == fate.replicas for fate in fates),
        "left_waiting": sum(fate.started_s is None and not fate.impossible for fate in fates),
        "wait_s": waits(fates),
        "delay_s": delays(fates),
        "gpu_hours": round(sum(fate.used_permille_s for fate in fates) / _HOUR_PERMILLE_S, 3),
        "preemptions": sum(fate.preemptions for fate in fates),
        "wasted_gpu_hours": round(sum(fate.wasted_permille_s for fate in fates) / _HOUR_PERMILLE_S, 3),
        "wasted_part": _ratio(sum(fate.wasted_permille_s for fate in fates), sum(f.used_permille_s for f in fates)),
        "most_preemptions_of_a_job": max((fate.preemptions for fate in fates), default=0),
    }


def _by_project(fates: Sequence[Fate]) -> dict[str, list[Fate]]:
    found: dict[str, list[Fate]] = {}
    for fate in fates:
        found.setdefault(fate.job.project, []).append(fate)
    return found


def _per_hour(count: int, record: Record) -> float:
    span_s = record.ended_s - record.fates[0].job.submitted_s if record.fates else 0.0
    return round(count * 3600 / span_s, 3) if span_s else 0.0


def _quantiles(fates: Sequence[Fate]) -> list[float]:
    times = [fate.wait_s for fate in fates if fate.wait_s is not None] or [0.0]
    return [round(float(value), 3) for value in np.percentile(times, range(101))]


def _series(record: Record, errors: Sequence[float]) -> list[dict[str, float]]:
    return [
        {
            "at_s": round(sample.at_s, 3),
            "allocated": _ratio(sample.allocated_permille, record.capacity_permille),
            "stranded": _ratio(sample.stranded_permille, record.capacity_permille),
            "waiting": sample.waiting,
            "share_error": round(error, 6),
        }
        for sample, error in zip(record.samples, errors, strict=True)
    ]


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 0.0


def job_table(record: Record) -> str:
    """Return CSV with the columns of ``COLUMNS``; times in seconds, empty where a job did not start or end."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_row(fate) for fate in record.fates)
    return out.getvalue()


def _row(fate: Fate) -> tuple[object, ...]:
    job = fate.job
    asked = (job.request.count, job.request.permille, job.members, _number(job.duration_s))
    became = (_number(fate.wait_s), _number(fate.delay_s), fate.preemptions, _number(fate.wasted_permille_s / 1000))
    return (_number(job.submitted_s), job.project, job.user, *asked, *became, fate.impossible)


def _number(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f}".rstrip("0").rstrip(".")
