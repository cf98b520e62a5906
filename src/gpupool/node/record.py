"""The records that the agent and a shepherd leave for each other in a replica's folder."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpupool.domain.supervision import ExitReason, ExitReport, ProcessSpec
from gpupool.node.paths import ReplicaFolder, read_json, write_json

EXIT_ROOM = 4096  # bytes
MESSAGE_LIMIT = 300  # characters; six bytes each at most in JSON


@dataclass(frozen=True, slots=True)
class Order:
    """What the agent tells a shepherd: ``spec.json``. ``boot_id`` is that of the machine when it was given.

    ``mode`` and ``guarantee`` are the sharing mode's name and promise; ``added_env`` and ``notes`` are its too.
    """

    spec: ProcessSpec
    added_env: dict[str, str]
    notes: tuple[str, ...]
    boot_id: str
    run_folder: Path
    mode: str = ""
    guarantee: str = ""

    def write(self, folder: ReplicaFolder) -> None:
        """Whole before anything starts. Raises OSError.

        Not waited for on the disk: what a power loss swallows, it has also ended, and the pool runs it again.
        """
        data = {
            "spec": self.spec.to_dict(),
            "added_env": self.added_env,
            "notes": self.notes,
            "boot_id": self.boot_id,
            "run_folder": str(self.run_folder),
            "mode": self.mode,
            "guarantee": self.guarantee,
        }
        reserve_exit(folder)
        write_json(folder.spec, data, durable=False)

    @classmethod
    def read(cls, folder: ReplicaFolder) -> Order | None:
        """None when it was never written whole."""
        data = read_json(folder.spec)
        if data is None:
            return None
        spec = ProcessSpec.from_dict(data["spec"])
        run_folder, notes = Path(data["run_folder"]), tuple(data["notes"])
        mode, guarantee = data.get("mode", ""), data.get("guarantee", "")
        return cls(spec, data["added_env"], notes, data["boot_id"], run_folder, mode, guarantee)


@dataclass(frozen=True, slots=True)
class ShepherdRecord:
    """What a shepherd says of itself: ``shepherd.json``. Start times are ticks since boot and make pids unambiguous.

    ``started_at`` (seconds since the epoch) is set once the program runs; ``cgroups`` are folders made for it.
    """

    pid: int
    start: int
    boot_id: str
    program: int | None = None
    program_start: int | None = None
    started_at: float | None = None
    notes: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()

    def write(self, folder: ReplicaFolder) -> None:
        """Replace the record. Raises OSError."""
        write_json(folder.shepherd, asdict(self), durable=False)

    @classmethod
    def read(cls, folder: ReplicaFolder) -> ShepherdRecord | None:
        """None when no shepherd came as far as to write it."""
        data = read_json(folder.shepherd)
        if data is None:
            return None
        data["notes"], data["cgroups"] = tuple(data["notes"]), tuple(data["cgroups"])
        return cls(**data)


def exit_to_dict(report: ExitReport) -> dict[str, Any]:
    """Plain JSON values."""
    return asdict(report)


def read_exit(folder: ReplicaFolder) -> ExitReport | None:
    """How the program ended; None while it has not."""
    data = read_json(folder.exit)
    return None if data is None else ExitReport(**{**data, "reason": ExitReason(data["reason"])})


def reserve_exit(folder: ReplicaFolder) -> None:
    """Take the room for the exit file now: an end must be writable on a disk that has become full. Raises OSError."""
    folder.reserve.write_bytes(b" " * EXIT_ROOM)


def write_exit(folder: ReplicaFolder, report: ExitReport) -> None:
    """Write the end, on the disk, in the room that was reserved. Raises OSError."""
    data = json.dumps(asdict(replace(report, message=report.message[:MESSAGE_LIMIT]))).encode().ljust(EXIT_ROOM)
    fd = os.open(folder.reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.pwrite(fd, data, 0) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(folder.reserve, folder.exit)  # noqa: PTH104 - one call, atomic


def read_notes(folder: ReplicaFolder) -> tuple[str, ...]:
    """What the agent had to say of the program while it ran."""
    data = read_json(folder.notes)
    return () if data is None else tuple(str(note) for note in data.get("notes", ()))


def write_notes(folder: ReplicaFolder, notes: tuple[str, ...]) -> None:
    """Keep them for the next agent. Raises OSError."""
    write_json(folder.notes, {"notes": notes}, durable=False)


def read_stop(folder: ReplicaFolder) -> float | None:
    """The grace in seconds of a stop that was asked for; None when none was."""
    data = read_json(folder.stop)
    return None if data is None else float(data.get("grace_s", 10.0))


def read_noticed(folder: ReplicaFolder) -> bool:
    """Whether the stop that was asked for comes with a notice: the program may be given time to save its state."""
    return bool((read_json(folder.stop) or {}).get("noticed"))


def write_stop(folder: ReplicaFolder, grace_s: float, *, noticed: bool = False) -> None:
    """Ask for a stop, for good. Raises OSError."""
    write_json(folder.stop, {"grace_s": grace_s, "noticed": noticed}, durable=False)
