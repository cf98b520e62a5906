"""``overhead``: the same training without the pool, with ``gpupool run``, in a slice, in a container, and remotely.

Every place runs the same command, as a user would type it. Start-up is the time from the command until the first
training step, and after the last one: wall time without training. The baseline is the program without the pool.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpupool.bench.figures import Figure
from gpupool.bench.machine import percentile
from gpupool.bench.run import BenchCase
from gpupool.bench.session import START_TIMEOUT_S, BenchSession, MeasureError, SkipError, program_folder
from gpupool.bench.train import training_arguments, training_detail
from gpupool.client.discovery import Remote, find_pool

BARE = "bare"
LOCAL_ONLY = "the pool is not on this machine; a run without it would measure another machine"
REMOTE_ONLY = "the pool is on this machine; run this from another one after 'gpupool login'"


@dataclass(frozen=True, slots=True)
class Place:
    """A place where the program runs. ``options`` are those of ``gpupool run``; None: not in the pool."""

    name: str
    options: tuple[str, ...] | None
    remote: bool = False
    container: bool = False


PLACES = (
    Place(BARE, None),
    Place("run", ("-g", "1")),
    Place("slice of 1.0", ("-p", "1.0")),
    Place("slice of 0.5", ("-p", "0.5")),
    Place("container", ("-g", "1"), container=True),
    Place("remote run", ("-g", "1"), remote=True),
)


def cases(session: BenchSession) -> list[BenchCase]:
    """Return the cases."""
    batches, repeats = ((1, 32), 1) if session.settings.quick else ((1, 256), 3)
    return [
        BenchCase(f"{place.name}, batch {batch}", partial(_place, place=place, batch=batch, repeats=repeats))
        for batch in batches
        for place in PLACES
    ]


def _place(session: BenchSession, place: Place, batch: int, repeats: int) -> Iterator[Figure]:
    runs = [_run(session, command_of(session, place, batch)) for _ in range(repeats)]
    answer = runs[0][1]
    case, program = f"{place.name}, batch {batch}", answer["program"]
    detail = training_detail(answer)
    speeds = [found["images_per_s"] for _, found in runs]
    startups = [wall_s - found["train_s"] for wall_s, found in runs]
    yield session.figure(
        f"{case}: {program}",
        percentile(speeds, 50),
        "images/s",
        samples=repeats,
        baseline=f"{BARE}, batch {batch}: {program}",
        **detail,
    )
    yield session.figure(
        f"{case}: start-up, {program}",
        percentile(startups, 50),
        "s",
        samples=repeats,
        baseline=f"{BARE}, batch {batch}: start-up, {program}",
        **detail,
    )


def command_of(session: BenchSession, place: Place, batch: int) -> list[str]:
    """Return the whole command. Raises ``SkipError`` if the place cannot be measured here."""
    is_remote = isinstance(find_pool(), Remote)
    if place.options is None and is_remote:
        raise SkipError(LOCAL_ONLY)
    if place.remote and not is_remote:
        raise SkipError(REMOTE_ONLY)
    if place.container and not session.settings.image:
        raise SkipError("give an image that has Python, and PyTorch, TensorFlow or NumPy: --image IMAGE")
    with program_folder() as folder:
        source = (folder / "training.py").read_text(encoding="utf-8")
    # The text of the program, because a container and another machine do not see the file.
    program = ["-c", source, *training_arguments(session, batch)]
    if place.options is None:
        return [session.settings.python, *program]
    own = [sys.executable, "-m", "gpupool", "run", "-q", "--no-tty", *place.options]
    if session.settings.project is not None:
        own += ["--project", session.settings.project]
    if place.container:
        return [*own, "-i", session.settings.image, "--", "python3", *program]
    return [*own, "--", session.settings.python, *program]


def _run(session: BenchSession, command: Sequence[str]) -> tuple[float, dict[str, Any]]:
    """Return the wall time and the program's answer. Ctrl-C ends the program, as in a terminal."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        output, errors = process.communicate(timeout=START_TIMEOUT_S * 4)
    except BaseException as error:
        process.terminate()
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise MeasureError(f"{session.part}: no end after {START_TIMEOUT_S * 4:g} s") from error
        raise
    wall_s = time.monotonic() - began
    try:
        answer = json.loads(output.strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise MeasureError(f"status {process.returncode}: {(errors or output).strip()[-500:]}") from error
    if "skip" in answer:
        raise SkipError(answer["skip"])
    return wall_s, answer
