"""The GPUs that programs get and return while they run: those of lazy and of suspendable programs.

The node reports when they are wanted. They come back when no process uses CUDA any more, or when its processes are
suspended: what they have in GPU memory then waits in the memory of the node. A lazy program is suspended when it has
not used its GPUs for a while, any suspendable program when the pool preempts it.

The node decides when GPUs are back, and then reports it: the pool counts them as taken until then. The order keeps them
from being used twice, whenever the agent is killed: first the pages go, or the processes are suspended, so that none
can use the GPUs; then the record of the program changes (as long as it names GPUs, the next agent writes the pages
again, or resumes the processes); then the return is reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.work.program.supervision import DEFAULT_RETURN_AFTER_S, ProcessStatus
from gpupool.node.agent.attempt import AttemptEntry
from gpupool.node.host.log import log_event
from gpupool.node.ports import NodeProgram, Suspending
from gpupool.node.sharing.choose import SharingModes


class Programs(Protocol):
    """The agent, as far as these programs need it."""

    entries: dict[str, AttemptEntry]
    sharing: SharingModes

    def program(self, entry: AttemptEntry) -> NodeProgram:
        """Return an entry as sharing modes see it."""

    def pids_of(self, entries: Iterable[AttemptEntry]) -> frozenset[int]:
        """Return all processes of some programs."""

    def changed(self, status: ProcessStatus) -> None:
        """Report a status."""

    def note(self, key: str, sentence: str) -> None:
        """Add a note to a program."""


LOOK_INTERVAL_S = 0.2
MIN_RETURN_AFTER_S = 1.0  # a program that waits for GPUs looks for them five times per second
RETRY_S = 2.0
IDLE_LOCK_TIMEOUT_S = 1.0  # for calls of a program that seems idle; it is asked again after its next idle time


class LazyGpus:
    """Reports, returns, suspensions and resumptions."""

    def __init__(self, programs: Programs, clock: Callable[[], float] = time.monotonic) -> None:
        self._programs = programs
        self._clock = clock
        self._unused_since: dict[str, float] = {}
        self._last_call: dict[str, tuple[int, float]] = {}  # by key: the number of calls, and when it was first seen
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}  # the newest suspension or resumption by key
        self._asked: set[str] = set()  # keys of suspensions that the pool asks for
        self._present = asyncio.Event()  # set while there is a program to look at

    def add(self, entry: AttemptEntry) -> None:
        """Look at a new program from now on, if its GPUs may come and go."""
        if entry.request.spec.separate_gpus:
            self._present.set()

    async def run(self) -> None:
        """Look for ever, while there are such programs: report what they want, and return what they use no more."""
        while True:
            await self._present.wait()
            await asyncio.sleep(LOOK_INTERVAL_S)
            await self.look()

    def changing(self, key: str) -> asyncio.Lock:
        """Return the lock that is held while GPUs are given to a program or taken from it."""
        return self._locks.setdefault(key, asyncio.Lock())

    async def look(self) -> None:
        """Look at each program: does it want GPUs, or can it return them?"""
        self._present.clear()
        for entry in list(self._programs.entries.values()):
            spec = entry.request.spec
            if not spec.separate_gpus or entry.exited:
                for known in (self._unused_since, self._last_call, self._locks):
                    known.pop(entry.key, None)
                continue
            self._present.set()
            if entry.key in self._tasks:
                continue
            if spec.gpu_returned > entry.status.gpu_returned:
                await self._return(entry)
            elif spec.gpu_epoch:
                await self._look_at_gpus(entry)
            else:
                await self._look_without_gpus(entry)

    async def _look_at_gpus(self, entry: AttemptEntry) -> None:
        spec = entry.request.spec
        if self._suspended_gpu(entry):  # the last agent did not finish its suspension or its resumption
            self._begin(entry, self._resume_later(entry))
        elif spec.lazy and entry.status.gpu_wanted_at is None:
            self._report(entry)
        elif spec.lazy and self._unused(entry):
            await self._return(entry)
        elif spec.lazy and spec.suspendable and self._idle(entry):
            self._last_call.pop(entry.key, None)
            self._begin(entry, self._suspend(entry, IDLE_LOCK_TIMEOUT_S, asked=False))

    async def _look_without_gpus(self, entry: AttemptEntry) -> None:
        if entry.status.gpu_wanted_at is None:
            self._report(entry)
        gpu = self._suspended_gpu(entry)
        if gpu and self._unused(entry) and self._take_pages(entry):  # its suspended processes have ended
            gpu = ""
        if gpu != entry.status.suspended_gpu:
            entry.status = replace(entry.status, suspended_gpu=gpu)
            self._programs.changed(entry.status)

    def _report(self, entry: AttemptEntry) -> None:
        wanted_at = self._programs.sharing.wanted_at(entry.request.mode, self._programs.program(entry))
        if wanted_at is not None:
            entry.status = replace(entry.status, gpu_wanted_at=wanted_at)
            self._programs.changed(entry.status)

    # -- returns -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _return_after_s(entry: AttemptEntry) -> float:
        return max(MIN_RETURN_AFTER_S, entry.request.spec.return_after_s or DEFAULT_RETURN_AFTER_S)

    def _unused(self, entry: AttemptEntry) -> bool:
        """Return whether no process of its lease has used CUDA for the time after which GPUs are returned."""
        if self._programs.sharing.in_use(entry.request.mode, self._programs.program(entry)):
            self._unused_since.pop(entry.key, None)
            return False
        return self._clock() - self._unused_since.setdefault(entry.key, self._clock()) >= self._return_after_s(entry)

    async def _return(self, entry: AttemptEntry) -> None:
        """Take the GPUs from a program, or report that again which could not be written before."""
        async with self.changing(entry.key):
            spec = entry.request.spec
            taken = spec.gpu_returned > entry.status.gpu_returned
            if not taken and spec.gpu_epoch and not entry.exited and self._take_pages(entry):
                entry.return_gpus()
                taken = True
            if taken:
                await self._write_return(entry)

    def _take_pages(self, entry: AttemptEntry) -> bool:
        """Remove the pages; False if a process still has them mapped."""
        self._unused_since.pop(entry.key, None)
        program = self._programs.program(entry)
        try:
            return self._programs.sharing.detach(entry.request.mode, program, lambda: self._pids(entry))
        except OSError as error:
            log_event("GPUs not returned", key=entry.key, error=repr(error))
            return False

    async def _write_return(self, entry: AttemptEntry) -> None:
        """Write the record and report the return; after an error the next look repeats it."""
        try:
            await asyncio.to_thread(entry.request.write, entry.folder)
        except OSError as error:
            log_event("return of GPUs not written", key=entry.key, error=repr(error))
            return
        entry.status = replace(
            entry.status,
            gpu_epoch=0,
            gpu_wanted_at=self._programs.sharing.wanted_at(entry.request.mode, self._programs.program(entry)),
            gpu_returned=entry.request.spec.gpu_returned,
            suspended_gpu=self._suspended_gpu(entry),
        )
        self._programs.changed(entry.status)

    # -- suspensions -------------------------------------------------------------------------------------------------

    def suspend(self, entry: AttemptEntry, lock_timeout_s: float) -> None:
        """Begin to suspend a program because the pool asks for it; its status says how that ends.

        A resumption that another agent left unfinished ends first.
        """
        if entry.key not in self._asked:
            self._asked.add(entry.key)
            self._begin(entry, self._suspend_asked(entry, lock_timeout_s, self._tasks.get(entry.key)))

    def require_own_gpu(self, entry: AttemptEntry, shares: Sequence[GpuShare]) -> None:
        """Require that a suspended program gets its GPU back: the driver restores its memory nowhere else."""
        gpu = self._suspended_gpu(entry)
        if gpu and [share.gpu_uuid for share in shares] != [gpu]:
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{entry.key} is suspended and needs {gpu}.", "Start it again.")

    async def resume(self, entry: AttemptEntry) -> None:
        """Let the processes of a program with GPUs run again. The caller holds ``changing``.

        Raises OSError, ``GpupoolError``.
        """
        mode = self._suspending(entry)
        if mode is not None and self._suspended_gpu(entry):
            await mode.resume(self._programs.program(entry), lambda: self._pids(entry))
            entry.status = replace(entry.status, suspended_gpu="")
            self._programs.changed(entry.status)

    async def _resume_later(self, entry: AttemptEntry) -> None:
        async with self.changing(entry.key):
            if entry.request.spec.gpu_epoch and not entry.exited:
                await self.resume(entry)

    async def _suspend_asked(
        self, entry: AttemptEntry, lock_timeout_s: float, earlier: asyncio.Task[None] | None
    ) -> None:
        epoch = entry.request.spec.gpu_epoch
        try:
            if earlier is not None:
                await asyncio.wait([earlier])
            if entry.request.spec.gpu_epoch == epoch:
                await self._suspend(entry, lock_timeout_s, asked=True)
        finally:
            self._asked.discard(entry.key)

    async def _suspend(self, entry: AttemptEntry, lock_timeout_s: float, *, asked: bool) -> None:
        async with self.changing(entry.key):
            mode, program = self._suspending(entry), self._programs.program(entry)
            if entry.exited or mode is None or not entry.request.spec.gpu_epoch:
                return
            try:
                await mode.suspend(program, lambda: self._pids(entry), lock_timeout_s)
            except GpupoolError as error:
                self._refuse(entry, error.message, asked=asked)
                return
            if asked:  # it was in use: it continues as soon as its GPUs are free, also if no call was seen to wait
                mode.want_gpus(program)
            entry.return_gpus()
            await self._write_return(entry)

    def _refuse(self, entry: AttemptEntry, why: str, *, asked: bool) -> None:
        log_event("not suspended", key=entry.key, why=why)
        if asked:
            entry.status = replace(entry.status, not_suspended=why)
            self._programs.changed(entry.status)
        else:
            self._programs.note(entry.key, why)

    def _idle(self, entry: AttemptEntry) -> bool:
        """Return whether no process of its lease has called the driver for the time after which GPUs are returned."""
        mode = self._suspending(entry)
        calls = 0 if mode is None else mode.calls(self._programs.program(entry))
        if entry.key not in self._last_call or self._last_call[entry.key][0] != calls:
            self._last_call[entry.key] = calls, self._clock()
        return mode is not None and self._clock() - self._last_call[entry.key][1] >= self._return_after_s(entry)

    def _begin(self, entry: AttemptEntry, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[entry.key] = asyncio.create_task(self._run_task(entry.key, work))

    async def _run_task(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (GpupoolError, OSError) as error:
            log_event("GPUs neither suspended nor resumed", key=key, error=repr(error))
            await asyncio.sleep(RETRY_S)
        finally:
            if self._tasks.get(key) is asyncio.current_task():
                del self._tasks[key]

    def _suspending(self, entry: AttemptEntry) -> Suspending | None:
        return self._programs.sharing.suspending(entry.request.mode)

    def _suspended_gpu(self, entry: AttemptEntry) -> str:
        mode = self._suspending(entry)
        return "" if mode is None else mode.suspended_gpu(self._programs.program(entry))

    def _pids(self, entry: AttemptEntry) -> frozenset[int]:
        """Return all processes of all programs on its lease."""
        number, others = entry.request.spec.lease_number, list(self._programs.entries.values())
        return self._programs.pids_of(
            other for other in others if not other.exited and other.request.spec.lease_number == number
        )
