"""The records that the agent and a shepherd exchange as files in a replica's folder, and the programs found by them."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpupool.domain.decode import decode
from gpupool.domain.errors import GpupoolError
from gpupool.domain.work.program.supervision import ExitReason, ExitReport, ProcessSpec
from gpupool.node.host.mounts import Bind
from gpupool.node.host.paths import ReplicaFolder, StateFolder, boot_id, read_json, write_json
from gpupool.node.host.process_tree import start_time

EXIT_FILE_BYTES = 4096  # bytes
MAX_CHECK_BYTES = 64 << 10  # of a packet of the process that executes a check
MAX_MESSAGE_CHARS = 300  # characters; six bytes each at most in JSON


@dataclass(frozen=True, slots=True)
class StartRequest:
    """The request of the agent to a shepherd: ``spec.json``. ``boot_id`` is the boot in which it was made.

    ``mode`` and ``guarantee`` are the name and the promise of the sharing mode; ``added_env`` and ``notes`` come from
    it. ``execution`` is the class by which the shepherd executes the program (``module:class``, ``ports.Execution``);
    empty for a process of the node. ``binds`` are files that the program sees over those of the machine.
    """

    spec: ProcessSpec
    added_env: dict[str, str]
    notes: tuple[str, ...]
    boot_id: str
    run_folder: Path
    mode: str = ""
    guarantee: str = ""
    execution: str = ""
    binds: tuple[Bind, ...] = ()

    def write(self, folder: ReplicaFolder) -> None:
        """Write the file as a whole, before anything is started. Raises OSError.

        It is not synced to the disk: a power loss that loses the file also ends the program, and the pool retries it.
        """
        data = {
            "spec": self.spec.to_dict(),
            "added_env": self.added_env,
            "notes": self.notes,
            "boot_id": self.boot_id,
            "run_folder": str(self.run_folder),
            "mode": self.mode,
            "guarantee": self.guarantee,
            "execution": self.execution,
            "binds": [(each.source, each.target) for each in self.binds],
        }
        reserve_exit(folder)
        write_json(folder.spec, data, durable=False)

    @classmethod
    def read(cls, folder: ReplicaFolder) -> StartRequest | None:
        """Read the file; return None if it was never written completely."""
        data = read_json(folder.spec)
        if data is None:
            return None
        spec = decode(ProcessSpec, data["spec"])
        run_folder, notes = Path(data["run_folder"]), tuple(data["notes"])
        later = {name: data.get(name, "") for name in ("mode", "guarantee", "execution")}
        binds = tuple(Bind(source, target) for source, target in data.get("binds", ()))
        return cls(spec, data["added_env"], notes, data["boot_id"], run_folder, **later, binds=binds)


@dataclass(frozen=True, slots=True)
class ShepherdRecord:
    """The state that a shepherd reports: ``shepherd.json``.

    Start times are ticks since boot; with them a pid is unambiguous. ``started_at`` (seconds since the epoch) is set
    when the program runs. ``cgroups`` are the folders made for it. ``lingers_since`` (seconds since the epoch) is set
    when the client has left, or the program has ended, and other processes may run on.
    """

    pid: int
    start: int
    boot_id: str
    program: int | None = None
    program_start: int | None = None
    started_at: float | None = None
    notes: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()
    lingers_since: float | None = None

    def write(self, folder: ReplicaFolder) -> None:
        """Replace the record. Raises OSError."""
        write_json(folder.shepherd, asdict(self), durable=False)

    @classmethod
    def read(cls, folder: ReplicaFolder) -> ShepherdRecord | None:
        """Read the record; return None if no shepherd has written it."""
        data = read_json(folder.shepherd)
        if data is None:
            return None
        data["notes"], data["cgroups"] = tuple(data["notes"]), tuple(data["cgroups"])
        return cls(**data)


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """A command that is executed where a program runs, and the seconds that it may take."""

    argv: tuple[str, ...]
    timeout_s: float

    def encode(self) -> bytes:
        """Return the packet for the process of the check."""
        return json.dumps([self.argv, self.timeout_s]).encode()

    @classmethod
    def decode(cls, data: bytes) -> CheckRequest:
        """Read a packet. Raises ``ValueError``."""
        argv, timeout_s = json.loads(data)
        return cls(tuple(argv), float(timeout_s))


def read_exit(folder: ReplicaFolder) -> ExitReport | None:
    """Return how the program ended; None while it runs."""
    data = read_json(folder.exit)
    return None if data is None else ExitReport(**{**data, "reason": ExitReason(data["reason"])})


def reserve_exit(folder: ReplicaFolder) -> None:
    """Reserve disk space for the exit file, so that it can be written on a full disk. Raises OSError."""
    folder.reserve.write_bytes(b" " * EXIT_FILE_BYTES)


def write_exit(folder: ReplicaFolder, report: ExitReport) -> None:
    """Write the exit file into the reserved space and sync it. Raises OSError."""
    data = (
        json.dumps(asdict(replace(report, message=report.message[:MAX_MESSAGE_CHARS]))).encode().ljust(EXIT_FILE_BYTES)
    )
    fd = os.open(folder.reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.pwrite(fd, data, 0) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(folder.reserve, folder.exit)  # noqa: PTH104 - one call, atomic


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of the agent about a running program. ``end_reason``: why the agent ended one of its processes."""

    said: tuple[str, ...] = ()
    end_reason: str = ""


def read_notes(folder: ReplicaFolder) -> Notes:
    """Return the notes that the last agent wrote."""
    data = read_json(folder.notes) or {}
    return Notes(tuple(str(note) for note in data.get("notes", ())), str(data.get("end_reason", "")))


def write_notes(folder: ReplicaFolder, notes: Notes) -> None:
    """Write the notes for the next agent. Raises OSError."""
    write_json(folder.notes, {"notes": notes.said, "end_reason": notes.end_reason}, durable=False)


def read_stop(folder: ReplicaFolder) -> float | None:
    """Return the grace period in seconds of a requested stop; None if no stop was requested."""
    data = read_json(folder.stop)
    return None if data is None else float(data.get("grace_s", 10.0))


def read_noticed(folder: ReplicaFolder) -> bool:
    """Return True if the requested stop comes with a notice, so that the program can save its state."""
    return bool((read_json(folder.stop) or {}).get("noticed"))


def write_stop(folder: ReplicaFolder, grace_s: float, *, noticed: bool = False) -> None:
    """Request a stop; it cannot be withdrawn. Raises OSError."""
    write_json(folder.stop, {"grace_s": grace_s, "noticed": noticed}, durable=False)


@dataclass(frozen=True, slots=True)
class RunningProgram:
    """A program whose shepherd lives; ``pool_id`` and ``name`` are empty if its record has none."""

    key: str
    pool_id: str
    name: str
    pid: int | None


def running_programs(state: StateFolder) -> list[RunningProgram]:
    """Return the running programs, by key; unreadable folders are omitted."""
    return sorted(_running_programs(state), key=lambda program: program.key)


def _running_programs(state: StateFolder) -> Iterator[RunningProgram]:
    if not state.replicas.is_dir():
        return
    for path in state.replicas.iterdir():
        folder = ReplicaFolder(path)
        try:
            request = StartRequest.read(folder)
            record = ShepherdRecord.read(folder)
        except (GpupoolError, OSError, KeyError, TypeError, ValueError):
            continue
        if request is not None and record is not None and _alive(record):
            kept = request.spec.record
            name = str((kept.get("workload") or {}).get("name", ""))
            yield RunningProgram(folder.key, str(kept.get("pool_id", "")), name, record.program)


def _alive(record: ShepherdRecord) -> bool:
    return record.boot_id == boot_id() and start_time(record.pid) == record.start
