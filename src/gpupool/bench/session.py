"""A benchmark's access to the pool: submit programs, wait for their output, and stop them in every case."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Unpack

from gpupool.bench.figures import Figure, measured
from gpupool.client import Client, Job
from gpupool.client.options import SubmitOptions
from gpupool.domain.errors import GpupoolError

START_TIMEOUT_S = 300.0  # importing a framework takes its time
POLL_INTERVAL_S = 0.1
LABEL = "gpupool-bench"


class SkipError(RuntimeError):
    """A requirement of a case is missing."""


class MeasureError(RuntimeError):
    """A case failed."""


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The options of a run. ``python`` is the Python of the jobs, ``image`` that of a case in a container."""

    quick: bool = False
    python: str = "python3"
    project: str | None = None
    image: str = ""


class BenchSession:
    """One benchmark on one pool. ``part`` is its name; ``value`` returns figures that were measured earlier."""

    def __init__(self, part: str, client: Client, settings: BenchSettings) -> None:
        self.part = part
        self.client = client
        self.settings = settings
        self._programs = ""
        self._jobs: list[Job] = []
        self._values: dict[str, Figure] = {}

    def remember(self, figure: Figure) -> None:
        """Make a measured figure available to later cases, as their baseline."""
        self._values[figure.name] = figure

    def figure(
        self, name: str, value: float, unit: str, *, samples: int, baseline: str = "", goal: str = "", **detail: Any
    ) -> Figure:
        """Return a measured figure, with its ratio to the figure that is called ``baseline``."""
        made = measured(self.part, name, value, unit, samples=samples, goal=goal, **detail)
        other = self._values.get(baseline)
        if other is None or not other.value:
            return made
        return replace(made, baseline=baseline, ratio=value / other.value)

    def earlier(self, name: str) -> Figure:
        """Return a figure of an earlier case. Raises ``SkipError`` if it was not measured."""
        if name not in self._values:
            raise SkipError(f"'{name}' was not measured")
        return self._values[name]

    def submit_program(
        self, program: str, *arguments: str, interpreter: Sequence[str] = (), **options: Unpack[SubmitOptions]
    ) -> Job:
        """Submit one of our programs; ``interpreter`` has options of Python."""
        if not self._programs:
            with program_folder() as folder:
                self._programs = self.client.send_folder(folder).tree
        options["tree"] = self._programs
        return self.submit([self.settings.python, *interpreter, f"{program}.py", *arguments], **options)

    def submit(self, command: Sequence[str], **options: Unpack[SubmitOptions]) -> Job:
        """Submit any command in the project of this run."""
        options.setdefault("labels", {LABEL: self.part})
        options.setdefault("restart", "never")
        if self.settings.project is not None:
            options.setdefault("project", self.settings.project)
        with deferred_interrupt():  # a job that was submitted but not noted would continue
            job = self.client.submit(command, **options)
            self._jobs.append(job)
        return job

    @contextmanager
    def jobs(self) -> Iterator[list[Job]]:
        """Give the list of jobs that are submitted in this block, and stop them at its end, also after Ctrl-C."""
        self._jobs = []
        try:
            yield self._jobs
        finally:
            self._stop(self._jobs)

    def _stop(self, jobs: Sequence[Job]) -> None:
        running = [job for job in jobs if not job.view.state.final]
        for job in running:
            try:
                job.cancel(force=True)
            except GpupoolError:
                continue  # it has ended, or the pool has; there is nothing to stop then
        for job in running:
            try:
                job.wait(START_TIMEOUT_S)
            except (GpupoolError, TimeoutError):
                continue

    def lines(self, job: Job, index: int = 0) -> list[dict[str, Any]]:
        """Return the JSON lines of a program so far. Raises ``SkipError`` if it says that it cannot run."""
        found = []
        for line in job.output(index).splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue  # a line of a library, or half a line
            if isinstance(value, dict):
                found.append(value)
        for value in found:
            if "skip" in value:
                raise SkipError(str(value["skip"]))
        return found

    def wait_for(self, jobs: Sequence[Job], ready: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until the output of every job is ready. Raises ``MeasureError`` if one ends before."""
        deadline = time.monotonic() + START_TIMEOUT_S
        for job in jobs:
            while not ready(self.lines(job)):
                if job.done() and not ready(self.lines(job)):
                    raise MeasureError(_why_ended(job))
                if time.monotonic() > deadline:
                    raise MeasureError(f"{job.name} was not ready in {START_TIMEOUT_S:g} s: {job.why().sentence}")
                time.sleep(POLL_INTERVAL_S)

    def answer(self, job: Job, index: int = 0) -> dict[str, Any]:
        """Wait for the end of a job and return a replica's last JSON line. Raises ``MeasureError``, ``SkipError``."""
        job.wait(4 * START_TIMEOUT_S)
        lines = self.lines(job, index)
        if job.view.exit_status or not lines:
            raise MeasureError(_why_ended(job, index))
        return lines[-1]


def _why_ended(job: Job, index: int = 0) -> str:
    reason = job.view.reason
    why = f": {reason.message}" if reason is not None and reason.message else ""
    return f"{job.name} {job.view.state}{why} {job.output(index)[-500:].strip()}".strip()


@contextmanager
def program_folder() -> Iterator[Path]:
    """Give the folder of the programs."""
    yield Path(str(files("gpupool.bench") / "programs"))


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Deliver a Ctrl-C that comes in this block at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt
