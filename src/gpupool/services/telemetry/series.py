"""Columns over time, made from samples or from rollup rows. No clock, no I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpupool.domain.nodes.telemetry import GpuRollup, NodeRollup, ReplicaRollup, RollupStep, Series
from gpupool.services.telemetry.rings import KEPT_S, Times, Values
from gpupool.services.telemetry.tallies import by_step

GPU_COLUMNS = ("utilisation_percent", "memory_used_mib", "power_w", "temperature_c", "sm_clock_mhz")
REPLICA_COLUMNS = (
    "gpu_percent",
    "gpu_memory_mib",
    "cpu_percent",
    "memory_mib",
    "read_bytes_per_s",
    "written_bytes_per_s",
)
NODE_COLUMNS = ("cpu_percent", "memory_used_mib")
MAX_POINTS = 1500
MINUTES_KEPT_S = 14 * 86400.0
_GAP = 1.5  # steps between two points; above that, samples are missing
_SAMPLE_GAP_S = 5.5  # seconds; a few late samples are not a gap
_LATE_S = 30.0  # tolerance: a request for the last ten minutes may arrive late

U = TypeVar("U", GpuRollup, ReplicaRollup, NodeRollup)
Row = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class SeriesSource:
    """Source of a series: samples (``rows`` is None), or rows of that step, combined into steps of ``step_s``."""

    rows: RollupStep | None
    step_s: int


def source_for(since: float, until: float, now: float, step: RollupStep | None) -> SeriesSource:
    """Return the finest source that reaches back to ``since``, or rows of the requested step.

    Minutes are used without a request only if they give at most 1,500 points. Steps are combined to stay within 1,500.
    """
    if step is None and since >= now - KEPT_S - _LATE_S:
        return SeriesSource(None, 1)
    fine = step is RollupStep.MINUTE or (step is None and since >= now - MINUTES_KEPT_S)
    if fine and (step or until - since <= MAX_POINTS * RollupStep.MINUTE):
        return _as_fine_as_fits(RollupStep.MINUTE, since, until)
    return _as_fine_as_fits(RollupStep.HOUR, since, until)


def _as_fine_as_fits(step: RollupStep, since: float, until: float) -> SeriesSource:
    return SeriesSource(step, step * max(1, math.ceil((until - since) / step / MAX_POINTS)))


def of_samples(columns: Sequence[str], times: Times, values: Values) -> Series:
    """Return a series of the samples themselves."""
    rows = [[None if math.isnan(value) else float(value) for value in row] for row in values]
    return _series(1, columns, [(float(at), row) for at, row in zip(times, rows, strict=True)], _SAMPLE_GAP_S)


def of_gpu(rows: Sequence[GpuRollup], step_s: int) -> Series:
    """Return a series of the rows of one GPU."""
    return _of_rows(GPU_COLUMNS, rows, step_s, _gpu_row)


def of_replica(rows: Sequence[ReplicaRollup], step_s: int) -> Series:
    """Return a series of the rows of one replica; attempts within the same step are combined."""
    return _of_rows(REPLICA_COLUMNS, rows, step_s, _replica_row)


def of_node(rows: Sequence[NodeRollup], step_s: int) -> Series:
    """Return a series of the rows of one node."""
    return _of_rows(NODE_COLUMNS, rows, step_s, _node_row)


def _of_rows(columns: Sequence[str], rows: Sequence[U], step_s: int, make: Callable[[Sequence[U], int], Row]) -> Series:
    points = [
        (float(at), make(group, sum(row.samples for row in group))) for at, group in by_step(rows, step_s).items()
    ]
    return _series(step_s, columns, points, _GAP * step_s)


def _gpu_row(rows: Sequence[GpuRollup], samples: int) -> Row:
    powered = [row for row in rows if row.energy_j is not None]
    hot = [row.temperature_max_c for row in rows if row.temperature_max_c is not None]
    clocked = {row: row.sm_clock_mean_mhz for row in rows if row.sm_clock_mean_mhz is not None}
    return (
        min(100.0, 100 * sum(row.busy_s for row in rows) / samples),
        sum(row.memory_mean_mib * row.samples for row in rows) / samples,
        sum(row.energy_j or 0.0 for row in powered) / sum(row.samples for row in powered) if powered else None,
        max(hot, default=None),
        sum(clock * row.samples for row, clock in clocked.items()) / sum(row.samples for row in clocked)
        if clocked
        else None,
    )


def _replica_row(rows: Sequence[ReplicaRollup], samples: int) -> Row:
    seconds = samples or sum(row.step for row in rows)  # without samples of its GPUs, divide by the length of the rows
    return (
        100 * sum(row.busy_s for row in rows) / samples if samples else None,
        sum(row.gpu_memory_mean_mib * row.samples for row in rows) / samples if samples else None,
        100 * sum(row.cpu_s for row in rows) / seconds,
        float(max(row.memory_max_mib for row in rows)),
        sum(row.read_bytes for row in rows) / seconds,
        sum(row.written_bytes for row in rows) / seconds,
    )


def _node_row(rows: Sequence[NodeRollup], samples: int) -> Row:
    return (
        100 * sum(row.cpu_s for row in rows) / samples,
        sum(row.memory_mean_mib * row.samples for row in rows) / samples,
    )


def _series(step_s: int, columns: Sequence[str], points: Sequence[tuple[float, Row]], gap_s: float) -> Series:
    """Return a series with a point of None values in each gap."""
    nothing: Row = [None] * len(columns)
    whole: list[tuple[float, Row]] = []
    for at, row in points:
        if whole and at - whole[-1][0] > gap_s:
            whole.append((whole[-1][0] + step_s, nothing))
        whole.append((at, row))
    values: Mapping[str, tuple[float | None, ...]] = {
        name: tuple(row[place] for _, row in whole) for place, name in enumerate(columns)
    }
    return Series(step_s, tuple(at for at, _ in whole), values)
