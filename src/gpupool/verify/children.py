"""Runs checks in child processes with limits of time and memory."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from gpupool.verify.results import Check, CheckOptions, CheckOutcome

_PROGRAM = Path(__file__).with_name("child.py")
TIMEOUT_S = 120.0
MAX_MEMORY_MIB = 8192
_END_S = 5.0  # after SIGKILL; a process that waits for a broken card can stay longer
_LOOK_S = 0.02
_LAST_CHARACTERS = 200


class ChildError(Exception):
    """A child process gave no result; the text says why."""


def run_check(name: str, uuids: list[str], options: CheckOptions, timeout_s: float = TIMEOUT_S) -> list[Check]:
    """Return the checks of one child on the first GPU; a failed one if it gave no result."""
    try:
        found = ask_child(name, uuids, options, timeout_s=timeout_s)
        return [Check.from_dict(check) for check in found]
    except ChildError as error:
        return [Check(name, CheckOutcome.FAIL, str(error))]


def ask_child(
    name: str,
    uuids: list[str],
    options: CheckOptions,
    *,
    timeout_s: float = TIMEOUT_S,
    max_memory_mib: int = MAX_MEMORY_MIB,
) -> Any:
    """Return the JSON that a child prints. Raises ``ChildError`` if it fails or exceeds a limit."""
    command = [sys.executable, "-I", str(_PROGRAM), name, json.dumps(asdict(options))]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(uuids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        reason = _wait(child, time.monotonic() + timeout_s, max_memory_mib)
        if reason is None and child.returncode == 0:
            try:
                return json.loads(_read(output))
            except ValueError:
                reason = "it printed no result"
        raise ChildError(reason or _end(child.returncode, _read(errors)))


def _wait(child: subprocess.Popen[bytes], deadline: float, max_memory_mib: int) -> str | None:
    """Wait for the end; kill the child over a limit and return which one."""
    while child.poll() is None:
        if time.monotonic() > deadline:
            return _kill(child, "the check did not end in time: the GPU hangs")
        if _memory_mib(child.pid) > max_memory_mib:
            return _kill(child, f"the check used more than {max_memory_mib} MiB of the node's memory")
        try:
            child.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            continue
    return None


def _kill(child: subprocess.Popen[bytes], reason: str) -> str:
    child.kill()
    try:
        child.wait(_END_S)
    except subprocess.TimeoutExpired:
        return f"{reason}, and process {child.pid} cannot be killed"
    return reason


def _memory_mib(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize() // 2**20


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _end(status: int, errors: str) -> str:
    if status < 0:
        return f"the check was ended by {signal.Signals(-status).name}"
    last = errors.strip().splitlines()[-1:] or [f"exit status {status}"]
    return f"the check failed: {last[0][:_LAST_CHARACTERS]}"
