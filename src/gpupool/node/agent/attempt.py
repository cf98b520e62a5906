"""Attempts: the steps of a start request, their state in the agent's memory, and fencing of stale commands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import split_attempt_key
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.protocol import frames
from gpupool.domain.protocol.fencing import COMMANDS, PING, is_deposed
from gpupool.domain.work.program.supervision import (
    MAX_CHECK_CHARS,
    MAX_CHECK_S,
    ExitReason,
    ExitReport,
    ProcessPhase,
    ProcessSpec,
    ProcessStatus,
    Progress,
)
from gpupool.node.host.log import log_event
from gpupool.node.host.paths import ReplicaFolder, read_json, write_json
from gpupool.node.host.records import ShepherdRecord, StartRequest, read_exit, read_notes
from gpupool.unix_sockets import connect

MAX_NOTES = 16  # made while a program runs
MIN_ACTIVE_CPU_SHARE = 0.01  # of one CPU between samples; below it a program counts as idle


def share_lease(one: ProcessSpec, other: ProcessSpec) -> bool:
    """Return True if two programs are the same, or of the same user on the same lease."""
    return one.key == other.key or (one.lease == other.lease != 0 and one.uid == other.uid)


def require_check(argv: Sequence[str], timeout_s: float) -> None:
    """Raise INVALID_REQUEST if a command that checks a program, or its time limit in seconds, is not possible."""
    size = sum(len(word) for word in argv)
    if not argv or size > MAX_CHECK_CHARS or any("\0" in word for word in argv) or not 0 < timeout_s <= MAX_CHECK_S:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            "The command of the check, or its time limit, is not possible.",
            f"Use up to {MAX_CHECK_CHARS} characters and {MAX_CHECK_S:g} s.",
        )


def check_spec(spec: ProcessSpec, *, has_command: bool) -> None:
    """Raise INVALID_REQUEST if no process can have this spec, FORBIDDEN for a user that this node cannot run as.

    ``has_command``: the runner knows a command for it.
    """
    texts = (*spec.argv, spec.cwd, *spec.env, *spec.env.values())
    nothing = not spec.argv and not has_command
    if nothing or any("\0" in text for text in texts) or any("=" in name or not name for name in spec.env):
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            "The command or its environment cannot be passed to a process.",
            "Give a command without zero bytes, and variables with valid names.",
        )
    own = os.geteuid()
    if own != 0 and spec.uid is not None and spec.uid != own:
        raise GpupoolError(
            ErrorCode.FORBIDDEN,
            f"This node runs programs as user {own} only, not {spec.uid}.",
            "Run the pool as root to serve several users.",
        )


def send_frame(path: str, kind: int, payload: bytes) -> None:
    """Send one frame to the shepherd behind a socket; log it if the shepherd is gone."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(5.0)
            connect(sock, path)
            sock.sendall(frames.encode(kind, payload))
    except OSError as error:
        log_event("frame not delivered", path=path, kind=kind, error=str(error))


class Epochs:
    """The newest epoch and attempt of each replica, in memory.

    Those of forgotten replicas are also empty files, named ``workload.index.attempt.epoch``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}

    def load(self) -> None:
        """Read the names of the files."""
        for entry in os.scandir(self._folder):
            key, _, epoch = entry.name.rpartition(".")
            with contextlib.suppress(GpupoolError, ValueError):
                self.see(key, int(epoch))

    @property
    def last(self) -> int:
        """Return the highest epoch seen of any replica."""
        return max((epoch for epoch, _attempt in self._seen.values()), default=0)

    def see(self, key: str, epoch: int) -> None:
        """Record that this attempt was started with this epoch."""
        workload, index, attempt = split_attempt_key(key)
        replica = (workload, index)
        self._seen[replica] = max(self._seen.get(replica, (-1, -1)), (epoch, attempt))

    def check_new(self, key: str, epoch: int) -> None:
        """Raise ``GpupoolError(STALE_WRITE)`` unless this is newer than all epochs seen of the replica."""
        workload, index, attempt = split_attempt_key(key)
        seen = self._seen.get((workload, index))
        if seen is not None and (epoch, attempt) <= seen:
            raise GpupoolError(
                ErrorCode.STALE_WRITE,
                f"{workload}.{index} was already started with epoch {seen[0]}; epoch {epoch} is stale.",
                "Nothing to do: a newer decision applies.",
            )

    def keep(self, key: str, epoch: int) -> None:
        """Store the epoch across restarts, before the replica's folder is deleted. Raises OSError."""
        (self._folder / f"{key}.{epoch}").touch(mode=0o600)

    def prune(self, older_than_s: float) -> None:
        """Delete files of replicas that were forgotten long ago."""
        limit = time.time() - older_than_s
        for entry in os.scandir(self._folder):
            with contextlib.suppress(OSError):
                if entry.stat().st_mtime < limit:
                    os.unlink(entry.path)  # noqa: PTH108 - scandir returns strings


class Terms:
    """The newest term of a leader, kept across restarts. Refuses pings and commands of replaced control planes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        kept = (read_json(path) or {}).get("term")
        self._seen = kept if isinstance(kept, int) else 0

    def check(self, method: str, term: int | None) -> None:
        """Record a newer term; raise ``GpupoolError(NOT_LEADING)`` for a ping or command of an older term."""
        if is_deposed(term, self._seen) and method in COMMANDS | {PING}:
            raise GpupoolError(
                ErrorCode.NOT_LEADING,
                f"This node follows the leader of term {self._seen}; '{method}' came from term {term}.",
                f"If the pool was given another database, stop the agent and delete {self._path}.",
            )
        if term is not None and term > self._seen:
            self._seen = term
            try:
                write_json(self._path, {"term": term}, durable=True)
            except OSError as error:  # contact must not depend on the disk; the term is known in memory
                log_event("term not kept", term=term, error=str(error))


@dataclass(slots=True)
class AttemptEntry:
    """One attempt. ``status`` is what is reported; ``added_notes`` are notes made while the program ran.

    ``end_reason`` is set when the agent itself ends a process of the program. ``carried``: bytes went to or from a
    client since the last sample. ``warned``: a notice for it is in force, so its activity is reported at once.
    ``clients`` counts the connections that let processes linger; ``client_at``: when the lease was last seen with one.
    """

    folder: ReplicaFolder
    request: StartRequest
    status: ProcessStatus
    pidfd: int | None = None
    launching: bool = False
    launches: int = 0
    cleaning: bool = False
    recheck: asyncio.TimerHandle | None = None
    force: asyncio.TimerHandle | None = None
    added_notes: tuple[str, ...] = ()
    end_reason: str = ""
    cpu_s: float | None = None
    sampled_at: float = 0.0
    carried: bool = False
    warned: bool = False
    clients: int = 0
    lingers_since: float | None = None
    client_at: float = 0.0

    @property
    def key(self) -> str:
        """Return the key of the attempt."""
        return self.folder.key

    @property
    def exited(self) -> bool:
        """Return True if no process of it is left."""
        return self.status.exit is not None

    def update(self, record: ShepherdRecord) -> bool:
        """Update the status from the shepherd's record; return True if it changed."""
        status = replace(self.status, notes=(*self.request.notes, *record.notes, *self.added_notes))
        if record.started_at is not None:
            active = status.last_active_at or record.started_at
            status = replace(status, phase=ProcessPhase.RUNNING, pid=record.program, started_at=record.started_at)
            status = replace(status, last_active_at=active)
        changed, self.status = status != self.status, status
        self.lingers_since = record.lingers_since
        return changed

    def set_request(self, request: StartRequest) -> None:
        """Set the complete start request."""
        self.request, self.status = request, first_status(request, self.status.attach_path)

    def give_gpus(self, epoch: int, shares: tuple[GpuShare, ...]) -> None:
        """Record the GPUs of a program under the epoch of their lease; repetitions change nothing.

        Raises WRONG_STATE for a program that cannot get GPUs while it runs, STALE_WRITE for an older epoch than that of
        its GPUs.
        """
        spec = self.request.spec
        if not spec.separate_gpus:
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{self.key} was not started without GPUs.", "Start it again.")
        newest = max(spec.gpu_epoch, spec.gpu_returned)
        if epoch < newest or epoch == spec.gpu_returned:
            raise GpupoolError(
                ErrorCode.STALE_WRITE,
                f"{self.key} has or had GPUs of epoch {newest}; epoch {epoch} is stale.",
                "Nothing to do: a newer decision applies.",
            )
        self.request = replace(self.request, spec=replace(spec, gpus=shares, gpu_epoch=epoch))
        self.status = replace(self.status, gpu_epoch=epoch, not_suspended="")

    def return_gpus(self) -> None:
        """Record in its request that a program has no GPUs any more; the status changes when that is written."""
        spec = self.request.spec
        self.request = replace(self.request, spec=replace(spec, gpus=(), gpu_epoch=0, gpu_returned=spec.gpu_epoch))

    def note(self, sentence: str) -> bool:
        """Add a note; return False if it was added before or there are too many."""
        if sentence in self.added_notes or len(self.added_notes) >= MAX_NOTES:
            return False
        self.added_notes = (*self.added_notes, sentence)
        self.status = replace(self.status, notes=(*self.status.notes, sentence))
        return True

    def recall(self) -> None:
        """Load the notes of the last agent."""
        notes = read_notes(self.folder)
        for sentence in notes.said:
            self.note(sentence)
        self.end_reason = notes.end_reason

    def finish(self, report: ExitReport) -> None:
        """Record the end. A program that failed after the agent ended a process of it failed for that reason."""
        if self.end_reason and report.reason is ExitReason.EXITED and report.status != 0:
            report = replace(report, message=report.message or self.end_reason)
        self.status = replace(self.status, phase=ProcessPhase.EXITED, exit=report, attach_path="")
        for timer in (self.recheck, self.force):
            if timer is not None:
                timer.cancel()

    def sample(self, cpu_s: float, at: float) -> bool:
        """Record CPU seconds; return True if the program was active since the last sample."""
        before, since = self.cpu_s, self.sampled_at
        self.cpu_s, self.sampled_at = cpu_s, at
        return before is not None and at > since and (cpu_s - before) / (at - since) > MIN_ACTIVE_CPU_SHARE

    def take_carried(self) -> bool:
        """Return True if bytes were carried since the last call."""
        carried, self.carried = self.carried, False
        return carried

    def take_progress(self, progress: Progress) -> bool:
        """Record what the program has reported; return True if it is new. A report is never withdrawn."""
        saved_at, step = progress.saved_at or self.status.saved_at, progress.step
        step, metrics = self.status.step if step is None else step, progress.metrics or self.status.metrics
        status = replace(self.status, saved_at=saved_at, step=step, metrics=metrics)
        changed, self.status = status != self.status, status
        return changed

    def touch(self) -> None:
        """Record that it is active now."""
        self.status = replace(self.status, last_active_at=time.time())


def first_status(request: StartRequest, attach_path: str) -> ProcessStatus:
    """Return the status of an attempt that is being started."""
    spec = request.spec
    return ProcessStatus(
        spec.key,
        spec.epoch,
        ProcessPhase.STARTING,
        attach_path=attach_path,
        notes=request.notes,
        mode=request.mode,
        guarantee=request.guarantee,
        gpu_epoch=spec.gpu_epoch,
        gpu_returned=spec.gpu_returned,
    )


def status_at_end(folder: ReplicaFolder, epoch: int) -> ProcessStatus | None:
    """Return the status of an ended attempt from its folder; None if it had a different epoch."""
    report, request = read_exit(folder), StartRequest.read(folder)
    if report is None or request is None or request.spec.epoch != epoch:
        return None
    entry = AttemptEntry(folder, request, first_status(request, ""))
    entry.recall()
    record = ShepherdRecord.read(folder)
    if record is not None:
        entry.update(record)
    entry.finish(report)
    return entry.status
