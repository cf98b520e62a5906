"""``slices``: how slices of one GPU divide its time: a whole GPU, one slice, two and many slices.

All programs of a case launch the same kernels without a pause. The share of a program is the part of all kernels that
ended in a common window; its expected share is its part of the slices on that GPU. The first case is the baseline: one
program on a whole GPU.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpupool.bench.figures import Figure
from gpupool.bench.run import BenchCase
from gpupool.bench.session import POLL_INTERVAL_S, BenchSession, MeasureError
from gpupool.client import Job

WHOLE = "whole GPU: throughput"
PROGRAM = "kernel_loop"
SETTLE_S = 1.0  # after the last program is ready
GOAL_POINTS = 2.0  # over 10 s
Samples = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class SliceDivision:
    """Slices that run at the same time. ``fractions`` is empty for a whole GPU."""

    name: str
    fractions: tuple[float, ...]
    compute: str = "guarantee"


DIVISIONS = (
    SliceDivision("one slice of 0.5", (0.5,)),
    SliceDivision("one slice of 0.5, cap", (0.5,), "cap"),
    SliceDivision("2 x 0.5", (0.5,) * 2),
    SliceDivision("0.25 + 0.75", (0.25, 0.75)),
    SliceDivision("0.1 + 0.9", (0.1, 0.9)),
    SliceDivision("4 x 0.25", (0.25,) * 4),
    SliceDivision("10 x 0.1", (0.1,) * 10),
    SliceDivision("20 x 0.05", (0.05,) * 20),
    SliceDivision("50 x 0.02", (0.02,) * 50),
)


def cases(session: BenchSession) -> list[BenchCase]:
    """Return the cases."""
    window_s = 3.0 if session.settings.quick else 20.0
    return [
        BenchCase("whole GPU", partial(_whole, window_s=window_s), needed=True),
        *(BenchCase(one.name, partial(_divided, division=one, window_s=window_s)) for one in DIVISIONS),
    ]


def _whole(session: BenchSession, window_s: float) -> Iterator[Figure]:
    with session.jobs() as jobs:
        session.submit_program(PROGRAM, gpus=1)
        rows = _measure(session, jobs, window_s)
        rounds = session.lines(jobs[0])[0]["rounds"]
    value = rows[0].per_second
    yield session.figure(WHOLE, value, "kernels/s", samples=rows[0].kernels, rounds=rounds, window_s=window_s)


@dataclass(frozen=True, slots=True)
class _SliceRow:
    """One program in the window: its GPU, its slice, and its work."""

    gpu: str
    permille: int
    kernels: int
    per_second: float


def _divided(session: BenchSession, division: SliceDivision, window_s: float) -> Iterator[Figure]:
    rounds = session.earlier(WHOLE).detail["rounds"]
    with session.jobs() as jobs:
        for fraction in division.fractions:
            session.submit_program(
                *(PROGRAM, "--rounds", str(rounds)),
                fraction=fraction,
                compute=division.compute,
                placement="pack",
            )
        rows = _measure(session, jobs, window_s)
    gpus = sorted({row.gpu for row in rows})
    detail: dict[str, Any] = {"window_s": window_s, "slices": len(rows), "gpus": len(gpus)}
    total = sum(row.per_second for row in rows) / len(gpus)
    samples = sum(row.kernels for row in rows)
    yield session.figure(f"{division.name}: throughput", total, "kernels/s", samples=samples, baseline=WHOLE, **detail)
    if len(rows) == 1:
        return
    shares = [share for gpu in gpus for share in shares_on([row for row in rows if row.gpu == gpu])]
    detail["shares_percent"] = [round(share.measured, 2) for share in shares]
    detail["expected_percent"] = [round(share.expected, 2) for share in shares]
    error = max(abs(share.measured - share.expected) for share in shares)
    yield session.figure(
        f"{division.name}: share error", error, "points", samples=samples, goal=f"<= {GOAL_POINTS:g}", **detail
    )


@dataclass(frozen=True, slots=True)
class SliceShare:
    """The part of a GPU's time that a program got and should have got, in percent."""

    measured: float
    expected: float


def shares_on(rows: Sequence[_SliceRow]) -> list[SliceShare]:
    """Return the shares of the programs on one GPU. Raises ``MeasureError`` if no kernel ended."""
    work, slices = sum(row.per_second for row in rows), sum(row.permille for row in rows)
    if not work or not slices:
        raise MeasureError("no kernel ended in the window")
    return [SliceShare(100.0 * row.per_second / work, 100.0 * row.permille / slices) for row in rows]


def _measure(session: BenchSession, jobs: Sequence[Job], window_s: float) -> list[_SliceRow]:
    """Return what each program did in a window in which all of them ran."""
    session.wait_for(jobs, lambda lines: any("t" in line for line in lines))
    begin = max(_samples(session, job)[-1][0] for job in jobs) + SETTLE_S
    end = begin + window_s
    deadline = time.monotonic() + SETTLE_S + 10 * window_s + 60.0
    for job in jobs:
        while (last := _samples(session, job)[-1][0]) < end:
            if job.done() or time.monotonic() > deadline:
                raise MeasureError(f"{job.name} did not run until the end of the window")
            time.sleep(max(POLL_INTERVAL_S, min(window_s, end - last)))
    rows = []
    for job in jobs:
        samples = _samples(session, job)
        kernels = completed(samples, end) - completed(samples, begin)
        share = job.detail().replicas[0].gpus[0]
        rows.append(_SliceRow(share.uuid, share.permille, round(kernels), kernels / window_s))
    return rows


def _samples(session: BenchSession, job: Job) -> list[tuple[float, float]]:
    return [(line["t"], line["n"]) for line in session.lines(job) if "t" in line]


def completed(samples: Samples, at: float) -> float:
    """Return the kernels that had ended at a time, between samples by linear interpolation."""
    index = bisect_right(samples, (at, float("inf")))
    if index == 0:
        return samples[0][1]
    if index == len(samples):
        return samples[-1][1]
    (before, first), (after, second) = samples[index - 1], samples[index]
    return first + (second - first) * (at - before) / (after - before)
