"""The words of the doctor's checks: what a finding is, what a check may look at, and helpers they share.

Each ``doctor_checks_*`` module has a list ``CHECKS`` of names and functions; a function takes the context and gives
findings. Checks only look: they start nothing, repair nothing, and leave nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpupool.daemon.folders import NODE_DIR, POOL_LOCK
from gpupool.daemon.processes import is_locked
from gpupool.node.paths import StateFolder

READ_LIMIT_BYTES = 1 << 20


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"  # the pool works, with less than it could have
    PROBLEM = "problem"  # the pool does not work, or not as it promises


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: a sentence, and what to do about it (empty when nothing is to be done)."""

    check: str
    level: Level
    sentence: str
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain JSON values, for ``--json``."""
        return {"check": self.check, "level": str(self.level), "sentence": self.sentence, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class DoctorContext:
    """Which pool to look at, and how it is to be started.

    ``emulate``: GPUs are emulated on purpose. ``listen``: ``host:port`` for the network, None for the socket alone.
    ``root`` is where /proc, /sys and /dev are, ``nvml`` the NVML module (None: nvidia-ml-py).
    """

    state_dir: Path
    run_dir: Path
    emulate: bool = False
    listen: str | None = None
    root: Path = Path("/")
    nvml: Any = None

    @property
    def node_state(self) -> StateFolder:
        """What the node agent keeps."""
        return StateFolder(self.state_dir / NODE_DIR)

    @property
    def closed(self) -> bool:
        """Whether the state folder is there but not for this user to look into (that of root's pool)."""
        return os.path.exists(self.state_dir) and not os.access(self.state_dir, os.R_OK | os.X_OK)  # noqa: PTH110 - never raises

    @property
    def pool_runs(self) -> bool:
        """Whether a pool runs in the state folder now."""
        return is_locked(self.state_dir / POOL_LOCK)


Check = Callable[[DoctorContext], Iterable[Finding]]
NamedCheck = tuple[str, Check]


def fine(check: str, sentence: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Level.OK, sentence)


def warning(check: str, sentence: str, remedy: str) -> Finding:
    """Worth a look."""
    return Finding(check, Level.WARNING, sentence, remedy)


def problem(check: str, sentence: str, remedy: str) -> Finding:
    """Must be repaired."""
    return Finding(check, Level.PROBLEM, sentence, remedy)


def read_text(path: Path) -> str:
    """The beginning of a file, empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(READ_LIMIT_BYTES).decode(errors="replace")
    except OSError:
        return ""


def entries(folder: Path) -> list[Path]:
    """What is in a folder, sorted; nothing when it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def count(number: int, noun: str) -> str:
    """``1 file``, ``3 files``, ``2 processes``."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"


def some(items: list[str], limit: int = 3) -> str:
    """The first of a list for a sentence, and how many more there are."""
    rest = len(items) - limit
    return ", ".join(items[:limit]) + (f" and {rest} more" if rest > 0 else "")
