"""Long computations in a forked child of this process, so that the event loop is not blocked.

A fork has the whole state of one moment for the cost of some page tables. A thread would have to share it with the
scheduler, which changes it. The child closes all inherited descriptors, computes the answer, writes it into a pipe and
exits. If the fork fails, the answer is computed in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import resource
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import structlog

T = TypeVar("T")

INLINE_COST_S = 0.01  # cheaper work runs in this process
MAX_CPU_S = 30  # CPU time after which a child is killed
MAX_WALL_S = 300.0  # time after which a child is killed that may wait for a lock of a thread that it does not have
_HANDLED_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
)

log = structlog.get_logger("gpupool.forked_worker")


class ForkedWorker:
    """Runs one kind of work in a forked child if its last run was expensive; one child at a time."""

    def __init__(self, assumed_s: Callable[[], float]) -> None:
        """Use ``assumed_s`` as the cost in seconds before the first run."""
        self._assumed_s = assumed_s
        self._measured_s: float | None = None
        self._child_lock = asyncio.Lock()

    @property
    def cost_s(self) -> float:
        """Return the CPU seconds of the last run."""
        return self._assumed_s() if self._measured_s is None else self._measured_s

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, which must be possible to pickle; errors of ``work`` are raised here."""
        if self.cost_s <= INLINE_COST_S:
            return self._run_inline(work)
        async with self._child_lock:
            result = await _run_in_child(work)
        if result is None:
            return self._run_inline(work)
        self._measured_s, answer = result
        return answer

    def _run_inline(self, work: Callable[[], T]) -> T:
        began = time.thread_time()
        try:
            return work()
        finally:
            self._measured_s = time.thread_time() - began


async def _run_in_child(work: Callable[[], T]) -> tuple[float, T] | None:
    """Return the CPU seconds and the answer; None if the child failed."""
    try:
        pid, handle, pipe = _fork(work)
    except OSError as error:
        log.warning("could not fork a worker", error=str(error))
        return None
    collected = asyncio.ensure_future(asyncio.to_thread(_collect, pid, pipe))
    try:
        done, _ = await asyncio.wait({collected}, timeout=MAX_WALL_S)
        if not done:
            log.warning("killed a worker that gave no answer", after_s=MAX_WALL_S)
            _kill(handle)
        text = await asyncio.shield(collected)
    except asyncio.CancelledError:
        _kill(handle)
        raise
    finally:
        os.close(handle)
    try:
        result: tuple[float, T] = pickle.loads(text)  # noqa: S301 - written by our own child
    except Exception:  # noqa: BLE001 - after any failure of the child, the work runs in this process
        return None
    return result


def _kill(handle: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)


def _collect(pid: int, pipe: int) -> bytes:
    with os.fdopen(pipe, "rb") as source:
        text = source.read()
    os.waitpid(pid, 0)
    return text


def _fork(work: Callable[[], object]) -> tuple[int, int, int]:
    """Start a child; return its pid, its pidfd, and the pipe with its answer.

    Signals are blocked until the child has reset the handlers of this process.
    """
    source, sink = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: the child waits for none of them
            pid = os.fork()
        if pid == 0:
            _run_child(work, sink)
        handle = os.pidfd_open(pid)  # not waited for yet, so the pid still belongs to the child
    except OSError:
        os.close(source)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(sink)
    return pid, handle, source


def _run_child(work: Callable[[], object], sink: int) -> NoReturn:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))  # no higher than jobs
        gc.disable()  # a collection would write to all pages, and so copy them
        signal.set_wakeup_fd(-1)
        for number in _HANDLED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        _close_all_but(sink)
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        began = time.thread_time()
        answer: Any = work()
        _write(sink, pickle.dumps((time.thread_time() - began, answer)))
    finally:
        os._exit(0)


def _close_all_but(open_fd: int) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - names are numbers here
        if number != open_fd:
            with contextlib.suppress(OSError):  # the descriptor of the listing is closed already
                os.close(number)


def _write(sink: int, text: bytes) -> None:
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(sink, text) :]
