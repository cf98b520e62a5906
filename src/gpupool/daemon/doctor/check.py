"""The types of the doctor's checks: findings, the context of a check, and shared helpers.

Each module of this package has a list ``CHECKS`` of names and functions; a function takes the context and yields
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
from gpupool.daemon.process.identity import is_locked
from gpupool.node.host.paths import StateFolder

READ_LIMIT_BYTES = 1 << 20


class Severity(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # the pool works, with fewer features
    PROBLEM = "problem"  # the pool does not work correctly


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: a sentence, and a remedy (empty if nothing is to be done)."""

    check: str
    level: Severity
    sentence: str
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return plain JSON values, for ``--json``."""
        return {"check": self.check, "level": str(self.level), "sentence": self.sentence, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class DoctorContext:
    """The pool to check, and the options of its start.

    ``emulate``: GPUs are emulated on purpose. ``listen``: ``host:port`` for the network, None: the socket only.
    ``root`` contains /proc, /sys and /dev; ``nvml`` is the NVML module (None: nvidia-ml-py).
    """

    state_dir: Path
    run_dir: Path
    emulate: bool = False
    listen: str | None = None
    root: Path = Path("/")
    nvml: Any = None

    @property
    def node_state(self) -> StateFolder:
        """Return the folder of the node agent's state."""
        return StateFolder(self.state_dir / NODE_DIR)

    @property
    def closed(self) -> bool:
        """Return whether the state folder exists but this user cannot read it (that of root's pool)."""
        return os.path.exists(self.state_dir) and not os.access(self.state_dir, os.R_OK | os.X_OK)  # noqa: PTH110 - never raises

    @property
    def pool_runs(self) -> bool:
        """Return whether a pool runs in the state folder now."""
        return is_locked(self.state_dir / POOL_LOCK)


Check = Callable[[DoctorContext], Iterable[Finding]]
NamedCheck = tuple[str, Check]


def fine(check: str, sentence: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(check, Severity.OK, sentence)


def warning(check: str, sentence: str, remedy: str) -> Finding:
    """Return a finding that deserves attention."""
    return Finding(check, Severity.WARNING, sentence, remedy)


def problem(check: str, sentence: str, remedy: str) -> Finding:
    """Return a finding that must be repaired."""
    return Finding(check, Severity.PROBLEM, sentence, remedy)


def read_text(path: Path) -> str:
    """Return the beginning of a file, empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(READ_LIMIT_BYTES).decode(errors="replace")
    except OSError:
        return ""


def entries(folder: Path) -> list[Path]:
    """Return the content of a folder, sorted; empty if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def count(number: int, noun: str) -> str:
    """Return ``1 file``, ``3 files``, ``2 processes``."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"


def some(items: list[str], limit: int = 3) -> str:
    """Return the first items for a sentence, and the number of the others."""
    rest = len(items) - limit
    return ", ".join(items[:limit]) + (f" and {rest} more" if rest > 0 else "")
