"""One attempt as the agent holds it in memory."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

from gpupool.domain.supervision import ExitReport, ProcessPhase, ProcessStatus
from gpupool.node.paths import ReplicaFolder
from gpupool.node.record import Order, ShepherdRecord, read_exit, read_notes

MOST_NOTES = 16  # made while a program runs
ACTIVE_SHARE = 0.01  # of one processor over a sample: below it a program counts as idle


@dataclass(slots=True)
class Entry:
    """``status`` is what is reported; the rest is how the agent keeps it true. ``said``: notes made while it ran."""

    folder: ReplicaFolder
    order: Order
    status: ProcessStatus
    pidfd: int | None = None
    launching: bool = False
    launches: int = 0
    cleaning: bool = False
    look_again: asyncio.TimerHandle | None = None
    force: asyncio.TimerHandle | None = None
    said: tuple[str, ...] = ()
    cpu_s: float | None = None
    sampled_at: float = 0.0

    @property
    def key(self) -> str:
        """The attempt's key."""
        return self.folder.key

    @property
    def exited(self) -> bool:
        """Whether no process of it is left."""
        return self.status.exit is not None

    def learn(self, record: ShepherdRecord) -> bool:
        """Take over what the shepherd says; True when the status changed."""
        status = replace(self.status, notes=(*self.order.notes, *record.notes, *self.said))
        if record.started_at is not None:
            active = status.last_active_at or record.started_at
            status = replace(status, phase=ProcessPhase.RUNNING, pid=record.program, started_at=record.started_at)
            status = replace(status, last_active_at=active)
        changed, self.status = status != self.status, status
        return changed

    def take(self, order: Order) -> None:
        """The order is complete now."""
        self.order, self.status = order, first_status(order, self.status.attach_path)

    def note(self, sentence: str) -> bool:
        """Add a note; True unless it has been said before, or too much has been."""
        if sentence in self.said or len(self.said) >= MOST_NOTES:
            return False
        self.said = (*self.said, sentence)
        self.status = replace(self.status, notes=(*self.status.notes, sentence))
        return True

    def finish(self, report: ExitReport) -> None:
        """It is over."""
        self.status = replace(self.status, phase=ProcessPhase.EXITED, exit=report, attach_path="")
        for timer in (self.look_again, self.force):
            if timer is not None:
                timer.cancel()

    def sample(self, cpu_s: float, at: float) -> bool:
        """Take a reading of processor seconds; True when the program was active since the last one."""
        before, since = self.cpu_s, self.sampled_at
        self.cpu_s, self.sampled_at = cpu_s, at
        return before is not None and at > since and (cpu_s - before) / (at - since) > ACTIVE_SHARE

    def touch(self) -> None:
        """It was active just now."""
        self.status = replace(self.status, last_active_at=time.time())


def first_status(order: Order, attach_path: str) -> ProcessStatus:
    """Of an attempt that is being started."""
    spec = order.spec
    return ProcessStatus(
        spec.key,
        spec.epoch,
        ProcessPhase.STARTING,
        attach_path=attach_path,
        notes=order.notes,
        mode=order.mode,
        guarantee=order.guarantee,
    )


def status_at_end(folder: ReplicaFolder, epoch: int) -> ProcessStatus | None:
    """Of an attempt that has ended, as its folder tells; None: it was not started with this very epoch."""
    report, order = read_exit(folder), Order.read(folder)
    if report is None or order is None or order.spec.epoch != epoch:
        return None
    entry = Entry(folder, order, first_status(order, ""))
    for note in read_notes(folder):
        entry.note(note)
    record = ShepherdRecord.read(folder)
    if record is not None:
        entry.learn(record)
    entry.finish(report)
    return entry.status
