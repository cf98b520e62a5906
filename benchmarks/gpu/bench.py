"""Run the workers of a benchmark: in a private pool, alone or together, and without a pool for a baseline.

A worker is a program of ``workers/``; its last line of output is one JSON object: what it measured, or
``{"skip": "why"}``. Those that run together wait for each other: each makes ``<folder>/ready.<name>``, and begins at
the time that ``<folder>/go`` then says.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

GPUPOOL = str(Path(sys.executable).parent / "gpupool")
WORKERS = Path(__file__).parent / "workers"
LAUNCH = WORKERS / "launch"  # a program in C; pack makes it, and a run in a checkout compiles it
TIMEOUT_S = 900.0
READY_S = 300.0  # importing a framework and compiling kernels takes its time
EMULATED_GPUS = "1xT4"
PREFIX = "gpub-"  # of the folder of the private pool


class SkipError(RuntimeError):
    """A requirement of a worker is missing."""


class FailedError(RuntimeError):
    """A worker failed."""


class NoGpuError(RuntimeError):
    """There is no real GPU to measure."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a worker: ``native`` (no pool at all), a whole GPU, or a part in a mode under a compute policy."""

    label: str
    options: tuple[str, ...] | None  # of ``gpupool run``; None: not through the pool


NATIVE = Place("native", None)
WHOLE = Place("whole", ("-g", "1"))
MPS = Place("0.5 by MPS", ("-p", "0.5", "--sharing", "mps"))


def part(fraction: float, compute: str = "guarantee") -> Place:
    """Return a slice limited by the share library; 1.0 is a whole GPU with the library."""
    options = ("-p", f"{fraction:g}", "--sharing", "share", "--compute", compute)
    return Place(f"{fraction:g} slice" + ("" if compute == "guarantee" else f", {compute}"), options)


@dataclass(frozen=True, slots=True)
class Work:
    """One worker: its script, its arguments and where it runs."""

    place: Place
    script: str
    arguments: tuple[str, ...] = ()


class Bench:
    """A private pool on this machine's GPUs; ``quick`` shortens all parts, ``emulated`` is for trying the benchmark.

    Workers that still run at ``deadline`` (of ``time.monotonic``) are ended.
    """

    def __init__(self, *, emulated: bool = False, quick: bool = False, deadline: float = math.inf) -> None:
        self.emulated = emulated
        self.quick = quick
        self.deadline = deadline
        self._rounds_per_us = 0.0
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GPUPOOL_")}
        self.env["GPUPOOL_STATE_DIR"] = str(self.folder / "state")
        self.env["XDG_CONFIG_HOME"] = str(self.folder / "config")
        if native := os.environ.get("GPUPOOL_NATIVE"):
            self.env["GPUPOOL_NATIVE"] = native
        self.gpu: dict[str, Any] = {}

    def __enter__(self) -> Self:
        emulate = ("--emulate", EMULATED_GPUS) if self.emulated else ()
        try:
            self._cli("up", "--background", *emulate)
            self.gpu = self._one_gpu()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        end_pool(self.folder, self.env)

    def _one_gpu(self) -> dict[str, Any]:
        """Return the GPU to measure; raise ``NoGpuError`` if there is no real, free one."""
        gpus = json.loads(self._cli("list_gpus", "--json"))["gpus"]
        wanted = [gpu for gpu in gpus if gpu["emulated"] is self.emulated]
        if not wanted:
            raise NoGpuError("The pool sees no real GPU on this machine.")
        free = [gpu for gpu in wanted if gpu["available"]]
        if not free:
            raise NoGpuError("Other programs use the GPU: figures taken now would say nothing. End them first.")
        return dict(free[0])

    def node(self) -> dict[str, Any]:
        """Return the pool's only node."""
        return dict(json.loads(self._cli("nodes", "--json"))["nodes"][0])

    def _cli(self, *arguments: str) -> str:
        done = subprocess.run(
            (GPUPOOL, *arguments), env=self.env, capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode:
            raise FailedError(f"gpupool {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def need_real_gpu(self) -> None:
        """Raise ``SkipError`` on emulated GPUs, for work of frameworks."""
        if self.emulated:
            raise SkipError("kernels of frameworks compute nothing on an emulated GPU")

    def rounds_per_us(self) -> float:
        """Return the rounds of the kernel of ``burn.py`` in a microsecond, measured once."""
        if not self._rounds_per_us:
            found = self.one(Work(WHOLE, "burn.py", ("--calibrate",)))
            self._rounds_per_us = float(found["rounds_per_us"])
        return self._rounds_per_us

    def seconds(self, full: float) -> float:
        """Return the length of a measurement window."""
        return max(2.0, full / 4) if self.quick else full

    def one(self, work: Work) -> dict[str, Any]:
        """Return the result of one worker alone on the machine; raise ``SkipError`` or ``FailedError``."""
        return self._result(self._start(work), work)

    def together(self, works: Sequence[Work]) -> list[dict[str, Any]]:
        """Return results of workers in the same window; raise ``SkipError`` or ``FailedError`` and end the others."""
        meeting = Path(tempfile.mkdtemp(dir=self.folder))
        begun: list[subprocess.Popen[str]] = []
        try:
            for number, work in enumerate(works):
                waits = ("--meet", str(meeting), "--name", str(number))
                begun.append(self._start(Work(work.place, work.script, (*work.arguments, *waits))))
            self._meet(meeting, begun, works)
            return [self._result(process, work) for process, work in zip(begun, works, strict=True)]
        finally:
            for process in begun:
                if process.poll() is None:
                    process.terminate()

    def _meet(self, meeting: Path, begun: Sequence[subprocess.Popen[str]], works: Sequence[Work]) -> None:
        deadline = time.monotonic() + READY_S
        while len(list(meeting.glob("ready.*"))) < len(begun):
            for process, work in zip(begun, works, strict=True):
                if process.poll() is not None:
                    self._result(process, work)
                    raise FailedError(f"{work.script} on {work.place.label} ended before it was ready")
            if time.monotonic() > min(deadline, self.deadline):
                raise FailedError(f"{works[0].script}: not all of {len(works)} workers became ready in time")
            time.sleep(0.05)
        written = meeting / "go.tmp"
        written.write_text(repr(time.time() + 0.5))
        written.rename(meeting / "go")

    def _start(self, work: Work) -> subprocess.Popen[str]:
        program = (*self._program(work.script), *work.arguments)
        env = self.env
        if work.place.options is None:
            if self.emulated:
                raise SkipError("an emulated GPU has no native run")
            env = env | {"CUDA_VISIBLE_DEVICES": str(self.gpu["uuid"])}
            command: tuple[str, ...] = program
        else:
            command = (GPUPOOL, "run", "-q", "--no-tty", *work.place.options, "--", *program)
        return subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def _program(self, script: str) -> tuple[str, ...]:
        """Return the command of a worker; compile it if it is the one in C."""
        if script != LAUNCH.name:
            return (sys.executable, str(WORKERS / script))
        made = LAUNCH if LAUNCH.exists() else self.folder / LAUNCH.name
        if not made.exists():
            command = ("cc", "-O2", "-o", str(made), f"{LAUNCH}.c", "-ldl")
            try:
                subprocess.run(command, capture_output=True, text=True, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise SkipError(f"there is no C compiler that works ({error})") from error
        return (str(made),)

    def _result(self, process: subprocess.Popen[str], work: Work) -> dict[str, Any]:
        left = min(TIMEOUT_S, max(0.0, self.deadline - time.monotonic()))
        try:
            said, complained = process.communicate(timeout=left)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise FailedError(f"{work.script} on {work.place.label} did not end within {left:.0f} s") from error
        return answer_of(said, complained, process.returncode, f"{work.script} on {work.place.label}")


def end_pool(folder: Path, env: Mapping[str, str]) -> None:
    """Stop the pool of a run and delete its folder."""
    subprocess.run((GPUPOOL, "down", "--stop-jobs"), env=env, capture_output=True, timeout=120, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def answer_of(said: str, complained: str, status: int, who: str) -> dict[str, Any]:
    """Return the object in a worker's last line; raise ``SkipError`` for a skip, ``FailedError`` otherwise."""
    if "IMPOSSIBLE_REQUEST" in complained or "[UNSUPPORTED]" in complained:
        raise SkipError(" ".join(line.strip() for line in complained.strip().splitlines()[:2]))
    lines = said.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        found = None
    if status or not isinstance(found, dict):
        raise FailedError(f"{who}: status {status}: {complained.strip()[-500:] or said.strip()[-500:]}")
    if "skip" in found:
        raise SkipError(str(found["skip"]))
    return found
