"""``queue``: how long a job takes to start, and how many jobs per second the pool runs.

The baseline starts the same program directly on this machine. Where Slurm is installed, the same jobs also go through
``srun`` and ``sbatch``.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Unpack

from gpupool.bench.figures import Figure
from gpupool.bench.machine import percentile
from gpupool.bench.run import BenchCase
from gpupool.bench.session import BenchSession, MeasureError, SkipError
from gpupool.client.options import SubmitOptions

COMMAND = ("true",)
DIRECT_LATENCY = "direct: latency"
DIRECT_RATE = "direct: throughput"
JOB_TIMEOUT_S = 120.0
SLURM_NAME = "gpupool-bench"


def cases(session: BenchSession) -> list[BenchCase]:
    """Return the cases."""
    quick = session.settings.quick
    repeats, burst = (10, 40) if quick else (50, 400)
    return [
        BenchCase("direct", partial(_direct, repeats=repeats, burst=burst)),
        BenchCase("latency without a GPU", partial(_latency, label="no GPU", repeats=repeats, gpus=0)),
        BenchCase("latency in a slice", partial(_latency, label="slice of 0.05", repeats=repeats, fraction=0.05)),
        BenchCase("throughput without a GPU", partial(_throughput, label="no GPU", burst=burst, gpus=0)),
        BenchCase("throughput in slices", partial(_throughput, label="slices of 0.05", burst=burst, fraction=0.05)),
        BenchCase("Slurm", partial(_slurm, repeats=repeats, burst=burst)),
    ]


def _times(start: Callable[[], object], repeats: int) -> list[float]:
    """Return how long each start and end took, ms."""
    found = []
    for _ in range(repeats):
        began = time.monotonic()
        start()
        found.append((time.monotonic() - began) * 1000)
    return found


def _spread(session: BenchSession, name: str, values: Sequence[float], baseline: str = "") -> Figure:
    detail: dict[str, Any] = {"p90": percentile(values, 90), "p99": percentile(values, 99), "min": min(values)}
    return session.figure(name, percentile(values, 50), "ms", samples=len(values), baseline=baseline, **detail)


def _direct(session: BenchSession, repeats: int, burst: int) -> Iterator[Figure]:
    def start() -> None:
        subprocess.run(COMMAND, check=True)

    yield _spread(session, DIRECT_LATENCY, _times(start, repeats))
    rate = 1000 * burst / sum(_times(start, burst))
    yield session.figure(DIRECT_RATE, rate, "jobs/s", samples=burst)


def _latency(session: BenchSession, label: str, repeats: int, **options: Unpack[SubmitOptions]) -> Iterator[Figure]:
    until_end, until_start = [], []
    for _ in range(repeats):
        with session.jobs() as jobs:
            began = time.monotonic()
            session.submit(COMMAND, **options)
            jobs[0].result(JOB_TIMEOUT_S)
            until_end.append((time.monotonic() - began) * 1000)
        view = jobs[0].view
        if view.started_at is not None:
            until_start.append((view.started_at - view.created_at) * 1000)
    yield _spread(session, f"{label}: submitted until ended", until_end, DIRECT_LATENCY)
    if until_start:
        yield _spread(session, f"{label}: submitted until started", until_start)


def _throughput(session: BenchSession, label: str, burst: int, **options: Unpack[SubmitOptions]) -> Iterator[Figure]:
    with session.jobs() as jobs:
        began = time.monotonic()
        for _ in range(burst):
            session.submit(COMMAND, **options)
        submitted_s = time.monotonic() - began
        for job in jobs:
            job.result(JOB_TIMEOUT_S)
        took_s = time.monotonic() - began
    detail: dict[str, Any] = {"submitted_per_s": burst / submitted_s}
    yield session.figure(
        f"{label}: throughput", burst / took_s, "jobs/s", samples=burst, baseline=DIRECT_RATE, **detail
    )


def _slurm(session: BenchSession, repeats: int, burst: int) -> Iterator[Figure]:
    if shutil.which("srun") is None or shutil.which("sbatch") is None:
        raise SkipError("Slurm is not installed on this machine (srun, sbatch)")
    try:
        _slurm_command("sinfo")
    except MeasureError as error:
        raise SkipError(f"Slurm does not run on this machine ({error})") from error
    yield _spread(
        session, "Slurm: srun latency", _times(lambda: _slurm_command("srun", "-n1", *COMMAND), repeats), DIRECT_LATENCY
    )
    began = time.monotonic()
    try:
        for _ in range(burst):
            _slurm_command("sbatch", "-n1", "-o", "/dev/null", "-J", SLURM_NAME, "--wrap", " ".join(COMMAND))
        while _slurm_command("squeue", "-h", "-n", SLURM_NAME).strip():
            if time.monotonic() - began > JOB_TIMEOUT_S * 5:
                raise MeasureError("the jobs of sbatch did not end in time")
            time.sleep(0.1)
    finally:
        _slurm_command("scancel", "-n", SLURM_NAME)
    rate = burst / (time.monotonic() - began)
    yield session.figure("Slurm: sbatch throughput", rate, "jobs/s", samples=burst, baseline=DIRECT_RATE)


def _slurm_command(*words: str) -> str:
    try:
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=JOB_TIMEOUT_S).stdout
    except subprocess.CalledProcessError as error:
        raise MeasureError(f"{words[0]}: {error.stderr.strip()[-300:]}") from error
    except subprocess.TimeoutExpired as error:
        raise MeasureError(f"{words[0]} did not answer in {JOB_TIMEOUT_S:g} s") from error
