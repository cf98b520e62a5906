"""What a simulation showed, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpupool.simulate.fairness import share_errors
from gpupool.simulate.values import Fate, Record

_HOUR_PERMILLE_S = 3600.0 * 1000


def summary(record: Record) -> dict[str, Any]:
    """All figures of a run: shares are of all GPUs from 0 to 1, waiting times seconds, amounts GPU hours.

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
    """The waiting times in seconds: mean, percentiles and the longest; zeros when nobody started."""
    return _spread([fate.wait_s for fate in fates if fate.wait_s is not None])


def delays(fates: Sequence[Fate]) -> dict[str, float]:
    """The same of the seconds by which jobs ended later than alone: waiting, evictions and what they cost."""
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
