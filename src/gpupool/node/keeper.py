"""Keeps programs and their files in step: starts shepherds, adopts them, notices their end, cleans up after lost ones.

Everything here runs on the event loop's thread; what may block is handed to worker threads. The rules, in order, of
what a folder says: an exit file means the end; a held lock means that a shepherd lives or is on its way; a free lock
and no shepherd's record means that nothing was ever started; a free lock with a record means a lost shepherd.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from gpupool.domain.errors import GpupoolError
from gpupool.domain.supervision import ExitReason, ExitReport, ProcessStatus
from gpupool.node import locks
from gpupool.node.entry import Entry
from gpupool.node.journal import say
from gpupool.node.paths import RunFolder, boot_id
from gpupool.node.ports import Launch, Runner
from gpupool.node.proctree import start_time
from gpupool.node.record import ShepherdRecord, read_exit, read_stop, write_exit

LAUNCH_TRIES = 5
FORCE_AFTER_S = 15.0  # beyond the grace: a shepherd that has not ended its program by then is stuck
_FIRST_LOOK_S = 0.1
_LONGEST_LOOK_S = 5.0


class KeeperListener(Protocol):
    """Who wants to know."""

    def changed(self, status: ProcessStatus) -> None:
        """A status is new."""

    async def ended(self, entry: Entry) -> None:
        """No process of a program is left."""


class Keeper:
    """Brings entries from one phase to the next; ``listener`` is told of it."""

    def __init__(self, runner: Runner, run: RunFolder, listener: KeeperListener) -> None:
        self._runner = runner
        self._run = run
        self._listener = listener
        self._boot = boot_id()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- starting ----------------------------------------------------------------------------------------------------

    async def launch(self, entry: Entry) -> None:
        """Have a shepherd started, exactly once however often the spawner dies; then look what became of it."""
        entry.launching = True
        try:
            for _ in range(LAUNCH_TRIES):
                if await self._launch_once(entry):
                    break
            else:
                await self._not_started(entry, "The node could not start a process for it.")
        except (OSError, GpupoolError) as error:
            await self._not_started(entry, str(getattr(error, "message", error)))
        finally:
            entry.launching = False
        self.examine(entry)

    async def _launch_once(self, entry: Entry) -> bool:
        """True when there is, was, or may be a shepherd; False when there surely is none."""
        lock = locks.take(entry.folder.lock)
        if lock is None:
            return True
        order = entry.order
        try:
            if entry.folder.shepherd.exists() or entry.folder.exit.exists():
                return True
            launch = Launch(entry.folder.path, self._run.path, order.spec, order.added_env, order.notes)
            await self._runner.launch(launch, lock)
        except ConnectionError as error:
            say("spawner lost", key=entry.key, error=str(error))
            return False
        finally:
            os.close(lock)
        return True

    async def _give_up(self, entry: Entry) -> None:
        await self._not_started(entry, "Its supervising process could not begin.")
        entry.launching = False
        self.examine(entry)

    async def _not_started(self, entry: Entry, why: str) -> None:
        await self._write_end(entry, ExitReport(ExitReason.START_FAILED, None, None, why, time.time()))

    # -- looking -----------------------------------------------------------------------------------------------------

    def examine(self, entry: Entry) -> None:
        """Compare what is known with the files and act on the difference. Cheap; call it on any hint."""
        if entry.exited or entry.launching or entry.cleaning:
            return
        report = read_exit(entry.folder)
        if report is not None:
            self._finish(entry, report)
            return
        record = ShepherdRecord.read(entry.folder)
        if record is not None and (entry.pidfd is not None or self._watch(entry, record)):
            if entry.learn(record):
                self._listener.changed(entry.status)
            if entry.status.started_at is None:
                self._look_again(entry)
        else:
            self._examine_unwatched(entry)

    def _examine_unwatched(self, entry: Entry) -> None:
        """No shepherd is seen: is one on its way, was there never one, or is it lost? The lock tells."""
        try:
            lock = locks.take(entry.folder.lock)
        except OSError as error:
            say("lock not readable", key=entry.key, error=str(error))
            lock = None
        if lock is None:
            self._look_again(entry)
            return
        report, record = read_exit(entry.folder), ShepherdRecord.read(entry.folder)
        if report is not None:
            os.close(lock)
            self._finish(entry, report)
        elif record is None and entry.order.boot_id == self._boot:
            os.close(lock)
            entry.launching = True
            entry.launches += 1
            enough = entry.launches > LAUNCH_TRIES
            self._spawn(self._give_up(entry) if enough else self.launch(entry))
        else:
            entry.cleaning = True
            self._spawn(self._clean_up(entry, record, lock))

    def _look_again(self, entry: Entry, after_s: float = _FIRST_LOOK_S) -> None:
        """Hints may be lost; look by ourselves, ever more seldom, until the program runs."""
        if entry.look_again is not None:
            entry.look_again.cancel()
        loop = asyncio.get_running_loop()
        entry.look_again = loop.call_later(after_s, self._on_look_again, entry, after_s)

    def _on_look_again(self, entry: Entry, after_s: float) -> None:
        entry.look_again = None
        self.examine(entry)
        if entry.look_again is not None:
            self._look_again(entry, min(after_s * 2, _LONGEST_LOOK_S))

    def _watch(self, entry: Entry, record: ShepherdRecord) -> bool:
        """Hear of the shepherd's end from the kernel; False when it is not there."""
        if record.boot_id != self._boot:
            return False
        try:
            fd = os.pidfd_open(record.pid)
        except OSError:
            return False
        if start_time(record.pid) != record.start:
            os.close(fd)
            return False
        entry.pidfd = fd
        asyncio.get_running_loop().add_reader(fd, self._on_shepherd_gone, entry)
        if read_stop(entry.folder) is not None:
            self.press_stop(entry)
        return True

    def _on_shepherd_gone(self, entry: Entry) -> None:
        self._unwatch(entry)
        self.examine(entry)

    def _unwatch(self, entry: Entry) -> None:
        if entry.pidfd is not None:
            asyncio.get_running_loop().remove_reader(entry.pidfd)
            os.close(entry.pidfd)
            entry.pidfd = None

    # -- ending ------------------------------------------------------------------------------------------------------

    def press_stop(self, entry: Entry) -> None:
        """Tell the shepherd that a stop is written; should it be stuck, do without it later."""
        if entry.pidfd is None:
            return
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(entry.pidfd, signal.SIGTERM)
        if entry.force is not None:
            entry.force.cancel()
        after_s = (read_stop(entry.folder) or 0.0) + FORCE_AFTER_S
        entry.force = asyncio.get_running_loop().call_later(after_s, self._force, entry)

    @staticmethod
    def _force(entry: Entry) -> None:
        say("shepherd is stuck", key=entry.key)
        if entry.pidfd is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(entry.pidfd, signal.SIGKILL)

    async def _clean_up(self, entry: Entry, record: ShepherdRecord | None, lock: int) -> None:
        """Kill what a lost shepherd left, see twice that nothing lives, and only then write the end."""
        rebooted = (entry.order.boot_id if record is None else record.boot_id) != self._boot
        clean, pause_s = 0, 0.005
        try:
            while clean < 2 and not rebooted:
                clean = clean + 1 if await asyncio.to_thread(self._runner.end_remains, entry.folder.path) else 0
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 1.0)
            await self._write_end(entry, _lost_report(entry, rebooted=rebooted))
        finally:
            entry.cleaning = False
            os.close(lock)
        self.examine(entry)

    async def _write_end(self, entry: Entry, report: ExitReport) -> None:
        """Keep trying while the disk is full; until it is written the end has not happened."""
        pause_s = 0.05
        while entry.folder.path.exists():
            try:
                await asyncio.to_thread(write_exit, entry.folder, report)
            except OSError as error:
                say("exit file not written", key=entry.key, error=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 5.0)
            else:
                return

    def _finish(self, entry: Entry, report: ExitReport) -> None:
        self._unwatch(entry)
        record = ShepherdRecord.read(entry.folder)
        if record is not None:
            entry.learn(record)
        entry.finish(report)
        self._runner.drop(entry.folder.path)
        for left in (self._run.attach(entry.key), self._run.notice(entry.key)):
            with contextlib.suppress(OSError):
                left.unlink()
        self._listener.changed(entry.status)
        self._spawn(self._listener.ended(entry))

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, entries: list[Entry]) -> None:
        """Stop watching; programs and shepherds run on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for entry in entries:
            self._unwatch(entry)
            for timer in (entry.look_again, entry.force):
                if timer is not None:
                    timer.cancel()


def _lost_report(entry: Entry, *, rebooted: bool) -> ExitReport:
    reason, message = ExitReason.SHEPHERD_LOST, "Its supervising process was killed, and the program with it."
    if rebooted:
        reason, message = ExitReason.NODE_RESTARTED, "The machine restarted while it ran."
    elif read_stop(entry.folder) is not None:
        reason, message = ExitReason.STOPPED, "It was stopped after its supervising process was lost."
    elif entry.folder.failure.exists():
        message = "Its supervising process failed, and the program was killed with it."
    return ExitReport(reason, None, signal.SIGKILL.value, message, time.time())
