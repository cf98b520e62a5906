"""The start-up phase of a control plane: the control plane writes it, waiting commands read it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

CONTROL_PLANE = "control-plane"  # as ChildName.CONTROL_PLANE, whose module takes long to import
PHASE_FILE = "control-plane.phase"
_MODE = 0o644  # readable by all users of the pool; the run folder excludes others
_LIMIT_BYTES = 1024


class StartPhase(StrEnum):
    """The steps of a control plane before it responds, in order."""

    LOADING = "loads its program"
    OPENING = "opens or upgrades the database"
    READING = "reads the database"
    LISTENING = "opens its sockets"
    READY = "is ready, but does not answer yet"


def enter_phase(run_dir: str, phase: StartPhase) -> None:
    """Write the phase of the calling process; a folder that cannot be written is no reason to fail."""
    from gpupool.daemon.config import write_atomically  # read by every `gpupool status`, written once

    text = json.dumps({"pid": os.getpid(), "phase": phase})
    with suppress(OSError):
        write_atomically(Path(run_dir) / PHASE_FILE, text, _MODE)


def read_phase(run_dir: str, pid: int) -> StartPhase:
    """Return the phase of a process; one that has written none is still loading its program."""
    try:
        with (Path(run_dir) / PHASE_FILE).open("rb") as file:
            written = json.loads(file.read(_LIMIT_BYTES))
        return StartPhase(written["phase"]) if written["pid"] == pid else StartPhase.LOADING
    except (OSError, ValueError, TypeError, KeyError):
        return StartPhase.LOADING
