"""The GPUs of lazy programs: report when they are wanted, and give them back when no process uses CUDA any more.

The node decides alone when GPUs come back, and then reports it: the pool counts them as taken until then. The order
keeps them from being used twice, whenever the agent is killed: first the pages go, so that no process can begin to use
the GPUs; then the record of the program changes (the next agent writes the pages again as long as it names GPUs); then
the return is reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from gpupool.domain.work.program.supervision import DEFAULT_RETURN_AFTER_S, ProcessStatus
from gpupool.node.agent.attempt import AttemptEntry
from gpupool.node.host.log import log_event
from gpupool.node.ports import NodeProgram
from gpupool.node.sharing.choose import SharingModes


class Programs(Protocol):
    """The agent, as far as lazy programs need it."""

    entries: dict[str, AttemptEntry]
    sharing: SharingModes

    def program(self, entry: AttemptEntry) -> NodeProgram:
        """Return an entry as sharing modes see it."""

    def pids_of(self, entries: Iterable[AttemptEntry]) -> frozenset[int]:
        """Return all processes of some programs."""

    def changed(self, status: ProcessStatus) -> None:
        """Report a status."""


MIN_RETURN_AFTER_S = 1.0  # a program that waits for GPUs looks for them five times per second


class LazyGpus:
    """Reports and returns of GPUs. ``changing`` is held while GPUs are given to a program or taken from it."""

    def __init__(self, programs: Programs, clock: Callable[[], float] = time.monotonic) -> None:
        self._programs = programs
        self._clock = clock
        self._unused_since: dict[str, float] = {}
        self.changing = asyncio.Lock()

    async def look(self) -> None:
        """Report the programs that have begun to use CUDA, and return the GPUs of those that use it no more."""
        for entry in list(self._programs.entries.values()):
            spec = entry.request.spec
            if not spec.lazy or entry.exited:
                self._unused_since.pop(entry.key, None)
            elif spec.gpu_returned > entry.status.gpu_returned:
                await self._return(entry)
            elif entry.status.gpu_wanted_at is None:
                self._report(entry)
            elif spec.gpu_epoch and self._unused(entry):
                await self._return(entry)

    def _report(self, entry: AttemptEntry) -> None:
        wanted_at = self._programs.sharing.wanted_at(entry.request.mode, self._programs.program(entry))
        if wanted_at is not None:
            entry.status = replace(entry.status, gpu_wanted_at=wanted_at)
            self._programs.changed(entry.status)

    def _unused(self, entry: AttemptEntry) -> bool:
        """Return whether no process of its lease has used CUDA for the time after which GPUs are returned."""
        if self._programs.sharing.in_use(entry.request.mode, self._programs.program(entry)):
            self._unused_since.pop(entry.key, None)
            return False
        after_s = max(MIN_RETURN_AFTER_S, entry.request.spec.return_after_s or DEFAULT_RETURN_AFTER_S)
        return self._clock() - self._unused_since.setdefault(entry.key, self._clock()) >= after_s

    async def _return(self, entry: AttemptEntry) -> None:
        """Take the GPUs from a program, or report that again which could not be written before."""
        async with self.changing:
            spec = entry.request.spec
            taken = spec.gpu_returned > entry.status.gpu_returned
            if taken or (spec.gpu_epoch and not entry.exited and self._take_pages(entry)):
                await self._write_return(entry)

    def _take_pages(self, entry: AttemptEntry) -> bool:
        """Remove the pages and the GPUs in memory; False if a process still has the pages mapped."""
        self._unused_since.pop(entry.key, None)
        program = self._programs.program(entry)
        try:
            if not self._programs.sharing.detach(entry.request.mode, program, lambda: self._pids(entry)):
                return False
        except OSError as error:
            log_event("GPUs not returned", key=entry.key, error=repr(error))
            return False
        entry.return_gpus()
        return True

    async def _write_return(self, entry: AttemptEntry) -> None:
        """Write the record and report the return; after an error the next look repeats it."""
        try:
            await asyncio.to_thread(entry.request.write, entry.folder)
        except OSError as error:
            log_event("return of GPUs not written", key=entry.key, error=repr(error))
            return
        entry.status = replace(
            entry.status, gpu_epoch=0, gpu_wanted_at=None, gpu_returned=entry.request.spec.gpu_returned
        )
        self._programs.changed(entry.status)

    def _pids(self, entry: AttemptEntry) -> frozenset[int]:
        """Return all processes of all programs on its lease."""
        number, others = entry.request.spec.lease_number, list(self._programs.entries.values())
        return self._programs.pids_of(
            other for other in others if not other.exited and other.request.spec.lease_number == number
        )
