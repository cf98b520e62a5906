"""Supervision of programs by their files: start shepherds, adopt them, notice ends, clean up after lost shepherds.

All code runs in the event loop's thread; blocking calls run in worker threads. A folder is read by these rules, in
order: an exit file means that the program ended. A held lock means that a shepherd lives or is being started. A free
lock without a shepherd's record means that nothing was started. A free lock with a record means a lost shepherd.
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
from gpupool.domain.work.program.supervision import ExitReason, ExitReport, ProcessStatus
from gpupool.node.agent.attempt import AttemptEntry
from gpupool.node.host import cgroups, locks
from gpupool.node.host.log import log_event
from gpupool.node.host.paths import RunFolder, boot_id
from gpupool.node.host.process_tree import start_time
from gpupool.node.host.progress_file import read_progress
from gpupool.node.host.records import ShepherdRecord, read_exit, read_stop, write_exit
from gpupool.node.ports import LaunchRequest, Runner

MAX_LAUNCH_TRIES = 5
FORCE_AFTER_S = 15.0  # after the grace period: a shepherd that has not ended its program by then is stuck
_FIRST_CHECK_S = 0.1
_MAX_CHECK_INTERVAL_S = 5.0


class SupervisorListener(Protocol):
    """The receiver of changes."""

    def changed(self, status: ProcessStatus) -> None:
        """Handle a new status."""

    async def ended(self, entry: AttemptEntry) -> None:
        """Handle the end of the last process of a program."""


class ProgramSupervisor:
    """Moves entries from one phase to the next and notifies ``listener``."""

    def __init__(self, runner: Runner, run: RunFolder, listener: SupervisorListener) -> None:
        self._runner = runner
        self._run = run
        self._listener = listener
        self._boot = boot_id()
        self._tasks: set[asyncio.Task[None]] = set()
        self._moves: asyncio.Future[None] | None = None

    # -- starting ----------------------------------------------------------------------------------------------------

    def prepare_moves(self) -> None:
        """Let the kernel prepare a program's move to its control groups; once for starts at the same time."""
        if self._moves is None or self._moves.done():
            self._moves = asyncio.get_running_loop().run_in_executor(None, cgroups.prepare_moves)

    async def launch(self, entry: AttemptEntry) -> None:
        """Start a shepherd, exactly once however often the spawner dies; then examine the result."""
        entry.launching = True
        try:
            for _ in range(MAX_LAUNCH_TRIES):
                if await self._launch_once(entry):
                    break
            else:
                await self._not_started(entry, "The node could not start the shepherd process.")
        except (OSError, GpupoolError) as error:
            await self._not_started(entry, str(getattr(error, "message", error)))
        finally:
            entry.launching = False
        self.examine(entry)

    async def _launch_once(self, entry: AttemptEntry) -> bool:
        """Return True if there is, was, or may be a shepherd; False if there certainly is none."""
        lock = locks.take(entry.folder.lock)
        if lock is None:
            return True
        try:
            if entry.folder.shepherd.exists() or entry.folder.exit.exists():
                return True
            await self._runner.launch(LaunchRequest(entry.folder.path, self._run.path, entry.request.spec), lock)
        except ConnectionError as error:
            log_event("spawner lost", key=entry.key, error=str(error))
            return False
        finally:
            os.close(lock)
        return True

    async def _give_up(self, entry: AttemptEntry) -> None:
        await self._not_started(entry, "The shepherd process did not start.")
        entry.launching = False
        self.examine(entry)

    async def _not_started(self, entry: AttemptEntry, why: str) -> None:
        await self._write_end(entry, ExitReport(ExitReason.START_FAILED, None, None, why, time.time()))

    # -- examining ---------------------------------------------------------------------------------------------------

    def examine(self, entry: AttemptEntry) -> None:
        """Compare the entry with its files and act on the difference. Cheap; call it on any hint."""
        if entry.exited or entry.launching or entry.cleaning:
            return
        report = read_exit(entry.folder)
        if report is not None:
            self._finish(entry, report)
            return
        record = ShepherdRecord.read(entry.folder)
        if record is not None and (entry.pidfd is not None or self._watch(entry, record)):
            if entry.update(record):
                self._listener.changed(entry.status)
            if entry.status.started_at is None:
                self._recheck(entry)
        else:
            self._examine_unwatched(entry)

    def _examine_unwatched(self, entry: AttemptEntry) -> None:
        """Decide by the lock if a shepherd is being started, was never started, or is lost."""
        try:
            lock = locks.take(entry.folder.lock)
        except OSError as error:
            log_event("lock not readable", key=entry.key, error=str(error))
            lock = None
        if lock is None:
            self._recheck(entry)
            return
        report, record = read_exit(entry.folder), ShepherdRecord.read(entry.folder)
        if report is not None:
            os.close(lock)
            self._finish(entry, report)
        elif record is None and entry.request.boot_id == self._boot:
            os.close(lock)
            entry.launching = True
            entry.launches += 1
            enough = entry.launches > MAX_LAUNCH_TRIES
            self._spawn(self._give_up(entry) if enough else self.launch(entry))
        else:
            entry.cleaning = True
            self._spawn(self._clean_up(entry, record, lock))

    def _recheck(self, entry: AttemptEntry, after_s: float = _FIRST_CHECK_S) -> None:
        """Examine again later, with growing delays, until the program runs: hints may be lost."""
        if entry.recheck is not None:
            entry.recheck.cancel()
        loop = asyncio.get_running_loop()
        entry.recheck = loop.call_later(after_s, self._on_recheck, entry, after_s)

    def _on_recheck(self, entry: AttemptEntry, after_s: float) -> None:
        entry.recheck = None
        self.examine(entry)
        if entry.recheck is not None:
            self._recheck(entry, min(after_s * 2, _MAX_CHECK_INTERVAL_S))

    def _watch(self, entry: AttemptEntry, record: ShepherdRecord) -> bool:
        """Watch for the shepherd's end by its pidfd; return False if the shepherd does not run."""
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

    def _on_shepherd_gone(self, entry: AttemptEntry) -> None:
        self._unwatch(entry)
        self.examine(entry)

    def _unwatch(self, entry: AttemptEntry) -> None:
        if entry.pidfd is not None:
            asyncio.get_running_loop().remove_reader(entry.pidfd)
            os.close(entry.pidfd)
            entry.pidfd = None

    # -- ending ------------------------------------------------------------------------------------------------------

    def press_stop(self, entry: AttemptEntry) -> None:
        """Signal the shepherd that a stop is requested, and kill it later if it does not react."""
        if entry.pidfd is None:
            return
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(entry.pidfd, signal.SIGTERM)
        if entry.force is not None:
            entry.force.cancel()
        after_s = (read_stop(entry.folder) or 0.0) + FORCE_AFTER_S
        entry.force = asyncio.get_running_loop().call_later(after_s, self._force, entry)

    @staticmethod
    def _force(entry: AttemptEntry) -> None:
        log_event("shepherd is stuck", key=entry.key)
        if entry.pidfd is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(entry.pidfd, signal.SIGKILL)

    async def _clean_up(self, entry: AttemptEntry, record: ShepherdRecord | None, lock: int) -> None:
        """Kill what a lost shepherd left, verify twice that nothing lives, and only then write the exit file."""
        rebooted = (entry.request.boot_id if record is None else record.boot_id) != self._boot
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

    async def _write_end(self, entry: AttemptEntry, report: ExitReport) -> None:
        """Write the exit file, retrying while the disk is full; without it the program counts as running."""
        pause_s = 0.05
        while entry.folder.path.exists():
            try:
                await asyncio.to_thread(write_exit, entry.folder, report)
            except OSError as error:
                log_event("exit file not written", key=entry.key, error=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 5.0)
            else:
                return

    def _finish(self, entry: AttemptEntry, report: ExitReport) -> None:
        self._unwatch(entry)
        record = ShepherdRecord.read(entry.folder)
        if record is not None:
            entry.update(record)
        entry.take_progress(read_progress(self._run, entry.key, time.time()))
        entry.finish(report)
        self._runner.drop(entry.folder.path)
        for left in (self._run.attach(entry.key), self._run.notice(entry.key), self._run.progress(entry.key)):
            with contextlib.suppress(OSError):
                left.unlink()
        self._listener.changed(entry.status)
        self._spawn(self._listener.ended(entry))

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, entries: list[AttemptEntry]) -> None:
        """Stop watching; programs and shepherds continue to run."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for entry in entries:
            self._unwatch(entry)
            for timer in (entry.recheck, entry.force):
                if timer is not None:
                    timer.cancel()


def _lost_report(entry: AttemptEntry, *, rebooted: bool) -> ExitReport:
    reason, message = ExitReason.SHEPHERD_LOST, "The shepherd process was killed, and the program with it."
    if rebooted:
        reason, message = ExitReason.NODE_RESTARTED, "The machine restarted while the program ran."
    elif read_stop(entry.folder) is not None:
        reason, message = ExitReason.STOPPED, "Stopped after the shepherd process was lost."
    elif entry.folder.failure.exists():
        message = "The shepherd process failed, and the program was killed with it."
    return ExitReport(reason, None, signal.SIGKILL.value, message, time.time())
