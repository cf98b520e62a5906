"""Asks NVML libraries through pynvml, each in a process of its own, and puts processes on simulated GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from native_harness import NATIVE, PROGRAMS, clean_environment, compile_program

FAKES = tuple(str(NATIVE / "fake" / name) for name in ("gpus.c", "mig.c", "state.c", "timeline.c"))
CARDS = """\
GPU-00000000-0000-0000-0000-000000000001 17179869184 40 7.5 134217728 Fake T4
GPU-EMULATED-00000000-0000-0000-0000-000000000002 85899345920 108 8.0 134217728 Fake A100  # cut
mig MIG-EMULATED-00000000-0000-0000-0000-0000000000a1 42949672960 46 3g.40gb
mig MIG-EMULATED-00000000-0000-0000-0000-0000000000a2 21474836480 30 2g.20gb
GPU-00000000-0000-0000-0000-000000000003 17179869184 40 7.5 134217728 Fake T4
"""
UUIDS = tuple(line.split()[line.startswith("mig")] for line in CARDS.splitlines())
T4, A100, MIG_3G, MIG_2G, LAST = UUIDS

_PRELUDE = """\
import json, sys
import pynvml as n
from pynvml import *

def code(function, *args):
    try:
        function(*args)
    except NVMLError as error:
        return error.value
    return 0

def pids(handle, ask=None):
    return sorted((p.pid, p.usedGpuMemory) for p in (ask or nvmlDeviceGetComputeRunningProcesses)(handle))

def tell(value):
    print(json.dumps(value))
"""


def cards_folder(folder: Path) -> Path:
    """Create a folder for GPUPOOL_FAKE_GPUS with three cards; the second has two MIG instances."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpus.conf").write_text(CARDS)
    return folder


def ask(library: Path, script: str, environment: Mapping[str, str]) -> Any:
    """Return the output of a script that uses pynvml with this preloaded library."""
    env = clean_environment() | {"LD_PRELOAD": str(library)} | dict(environment)
    text = _PRELUDE + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def holder_program(folder: Path) -> Path:
    """Build nvml_holder and return its path."""
    return compile_program(PROGRAMS / "nvml_holder.c", folder, "-D_GNU_SOURCE=", *FAKES)


@contextmanager
def on_gpu(
    program: Path, gpus: Path, where: tuple[int, int], used: int, work_ns: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """Start a process that uses that many bytes of (card, MIG instance or -1), with work to do."""
    command = [str(program), *map(str, where), str(used), str(work_ns)]
    env = os.environ | {"GPUPOOL_FAKE_GPUS": str(gpus)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()
