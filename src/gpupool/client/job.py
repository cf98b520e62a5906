"""The object for one workload that a submission returns, similar to ``concurrent.futures``."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Literal, Protocol, Self, Unpack

from gpupool.api.schemas.work.workloads import WhyView, WorkloadDetail, WorkloadView
from gpupool.client.files.download import FetchResult
from gpupool.client.options import Command, SubmitOptions
from gpupool.domain.errors import GpupoolError
from gpupool.domain.protocol.log_records import LogChunk
from gpupool.domain.units import format_duration, format_mib, format_permille
from gpupool.domain.work.workload import WorkloadKind, WorkloadState


class WorkloadClient(Protocol):
    """The methods of ``Client`` on which jobs are based."""

    def detail(self, ref: str) -> WorkloadDetail:
        """Return all data of a workload."""

    def wait_until(
        self, what: Literal["started", "finished"], ref: str, timeout: float | None = None
    ) -> WorkloadDetail:
        """Wait until a workload has started or ended."""

    def fetch(
        self, ref: str, *paths: str, into: str | os.PathLike[str] = ".", index: int = 0, force: bool = False
    ) -> FetchResult:
        """Download files of a workload."""

    def submit(self, command: Command, **options: Unpack[SubmitOptions]) -> Job:
        """Submit a program."""

    def stop(self, ref: str, *, grace_s: float | None = None, force: bool = False) -> Job:
        """Stop a workload."""

    def suspend(self, ref: str) -> Job:
        """Suspend a workload."""

    def restart(self, ref: str, *, grace_s: float | None = None, force: bool = False) -> Job:
        """Restart a program on the same GPUs."""

    def resume(self, ref: str) -> Job:
        """Queue a suspended workload again."""

    def extend(self, ref: str, seconds: float) -> Job:
        """Extend a lease."""

    def delete(self, ref: str) -> None:
        """Delete a workload that has ended."""

    def why(self, ref: str) -> WhyView:
        """Return why a workload is in its state."""

    def logs(
        self, ref: str, *, follow: bool = False, index: int = 0, attempt: int | None = None, tail: int | None = None
    ) -> Iterator[LogChunk]:
        """Yield the output of a replica."""


class JobFailed(Exception):  # noqa: N818 - named like the exceptions of concurrent.futures
    """A workload ended without success. ``exit_status`` is its program's (None if there is no single one).

    ``ending`` has the code, the sentence, the side that decided, and what to do.
    """

    def __init__(self, view: WorkloadView) -> None:
        ended = view.ending
        why = f": {ended.sentence} [{ended.code}]" if ended else ""
        remedy = f". Suggestion: {ended.remedy}" if ended and ended.remedy else ""
        status = "" if view.exit_status is None else f" with exit status {view.exit_status}"
        super().__init__(f"{view.name} {view.state}{status}{why}{remedy}")
        self.view = view
        self.ending = ended
        self.exit_status = view.exit_status


class Job:
    """A workload of the pool. ``view`` is its state at the last request; ``refresh`` updates it."""

    def __init__(self, client: WorkloadClient, view: WorkloadView) -> None:
        self._client = client
        self.view = view

    @property
    def id(self) -> str:
        """Return its identifier."""
        return self.view.id

    @property
    def name(self) -> str:
        """Return its name."""
        return self.view.name

    @property
    def status(self) -> WorkloadState:
        """Return its state now; asks the pool unless it has ended."""
        return self.view.state if self.view.state.final else self.refresh().view.state

    def refresh(self) -> Self:
        """Update ``view``."""
        self.view = self._client.detail(self.id)
        return self

    def fetch(
        self, *paths: str, into: str | os.PathLike[str] = ".", index: int = 0, force: bool = False
    ) -> FetchResult:
        """Download files and folders (all, or ``paths``) of its folder; see ``Client.fetch``."""
        return self._client.fetch(self.id, *paths, into=into, index=index, force=force)

    def done(self) -> bool:
        """Return whether it has ended."""
        return self.status.final

    def running(self) -> bool:
        """Return whether it is running."""
        return self.status is WorkloadState.RUNNING

    def wait(self, timeout: float | None = None) -> Self:
        """Wait until it has ended. Raises ``TimeoutError`` after ``timeout`` seconds."""
        self.view = self._client.wait_until("finished", self.id, timeout)
        return self

    def wait_started(self, timeout: float | None = None) -> Self:
        """Wait until it has started or ended. Raises ``TimeoutError`` after ``timeout`` seconds."""
        self.view = self._client.wait_until("started", self.id, timeout)
        return self

    def result(self, timeout: float | None = None) -> int:
        """Wait for the end and return 0. Raises ``JobFailed`` if it did not succeed, ``TimeoutError``."""
        self.wait(timeout)
        if self.view.state is not WorkloadState.SUCCEEDED:
            raise JobFailed(self.view)
        return self.view.exit_status or 0

    def cancel(self, *, grace_s: float | None = None, force: bool = False) -> bool:
        """Ask it to stop; return False if it had already ended."""
        if self.done():
            return False
        self.view = self._client.stop(self.id, grace_s=grace_s, force=force).view
        return True

    stop = cancel

    def suspend(self) -> Self:
        """Stop it and keep it out of the queue until ``resume``."""
        self.view = self._client.suspend(self.id).view
        return self

    def restart(self, *, grace_s: float | None = None, force: bool = False) -> Self:
        """Stop the program and start it again on the same GPUs."""
        self.view = self._client.restart(self.id, grace_s=grace_s, force=force).view
        return self

    def resume(self) -> Self:
        """Queue it again."""
        self.view = self._client.resume(self.id).view
        return self

    def delete(self) -> None:
        """Delete it after it has ended."""
        self._client.delete(self.id)

    def logs(
        self, *, follow: bool = False, index: int = 0, attempt: int | None = None, tail: int | None = None
    ) -> Iterator[LogChunk]:
        """Yield the output of a replica, chunk by chunk; with ``follow`` until its attempt ends."""
        return self._client.logs(self.id, follow=follow, index=index, attempt=attempt, tail=tail)

    def output(self, index: int = 0) -> str:
        """Return all output of a replica so far, as text."""
        return b"".join(chunk.data for chunk in self.logs(index=index)).decode(errors="replace")

    def why(self) -> WhyView:
        """Return why it is in its state."""
        return self._client.why(self.id)

    def detail(self) -> WorkloadDetail:
        """Return all its data, with its replicas and leases."""
        return self._client.detail(self.id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.id} {self.view.state}>"

    def _repr_html_(self) -> str:
        """Return a small table for notebooks."""
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(key)}</th><td>{html.escape(value)}</td></tr>"
            for key, value in _rows(self.view)
        )
        return f"<table>{cells}</table>"


def _rows(view: WorkloadView) -> Iterator[tuple[str, str]]:
    yield "job", f"{view.name} ({view.id})"
    yield "state", view.state + (f", exit status {view.exit_status}" if view.exit_status is not None else "")
    if view.ending is not None:
        yield "ended", f"{view.ending.sentence} [{view.ending.code}]"
    elif view.reason is not None and view.reason.message:
        yield "reason", f"{view.reason.message} [{view.reason.code}]"
    gpus = view.gpus
    part = format_mib(gpus.memory_mib) if gpus.memory_mib is not None else format_permille(gpus.permille)
    yield "GPUs", f"{gpus.count} x {part}"
    if view.node is not None:
        yield "node", view.node
    if view.command is not None:
        yield "command", " ".join(view.command)
    if view.started_at is not None and view.finished_at is not None:
        yield "ran", format_duration(view.finished_at - view.started_at)
    if view.completions > 1:
        done = view.counts.succeeded + view.counts.failed + view.counts.stopped
        yield "replicas", f"{done} of {view.completions} ended, {view.counts.running} running"


class Lease(Job):
    """A lease of GPUs: run several programs on them, one after another or at once, then release them.

    As a context manager it is released at the end of the block.
    """

    def submit(self, command: Command, **options: Unpack[SubmitOptions]) -> Job:
        """Start a program on the leased GPUs and return at once."""
        options["kind"] = WorkloadKind.EXEC.value
        options["on"] = self.id
        return self._client.submit(command, **options)

    def run(self, command: Command, *, timeout: float | None = None, **options: Unpack[SubmitOptions]) -> Job:
        """Run a program on the leased GPUs until it ends. Raises ``JobFailed``, ``TimeoutError``."""
        job = self.submit(command, **options)
        job.result(timeout)
        return job

    def extend(self, seconds: float) -> Self:
        """Extend the lifetime of the lease."""
        self.view = self._client.extend(self.id, seconds).view
        return self

    def release(self) -> None:
        """Release the GPUs; programs on them are stopped. Releasing twice has no effect."""
        self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except GpupoolError:
            if error is None:
                raise
