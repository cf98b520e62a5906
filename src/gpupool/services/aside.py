"""Long answers worked out in a copy of this process, so that its loop goes on meanwhile.

A fork has everything that is known at one moment, for the price of some page tables; a thread would have to share it
with decisions that change it. The copy touches nothing outside: it closes all that it has inherited, works the answer
out, writes it into a pipe and ends. Where that cannot be, the answer is worked out here.
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

CHEAP_S = 0.01  # what costs no more is worked out here
LONGEST_S = 30  # of the processor's time, then a copy is ended
_KNOWN = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE)

log = structlog.get_logger("gpupool.aside")


class Aside:
    """One kind of work, of which it is remembered what it costs; one copy at a time."""

    def __init__(self, guess_s: Callable[[], float]) -> None:
        """``guess_s`` says what the work may cost before any was done."""
        self._guess_s = guess_s
        self._known_s: float | None = None
        self._alone = asyncio.Lock()

    @property
    def cost_s(self) -> float:
        """What one answer costs of the processor's time."""
        return self._guess_s() if self._known_s is None else self._known_s

    async def do(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, which must be a value that can be pickled; what it raises is raised here."""
        if self.cost_s <= CHEAP_S:
            return self._here(work)
        async with self._alone:
            told = await _elsewhere(work)
        if told is None:
            return self._here(work)
        self._known_s, answer = told
        return answer

    def _here(self, work: Callable[[], T]) -> T:
        began = time.thread_time()
        try:
            return work()
        finally:
            self._known_s = time.thread_time() - began


async def _elsewhere(work: Callable[[], T]) -> tuple[float, T] | None:
    """The seconds it took and the answer; None when the copy came to nothing."""
    try:
        pid, handle, pipe = _forked(work)
    except OSError as error:
        log.warning("could not work beside", error=str(error))
        return None
    collected = asyncio.ensure_future(asyncio.to_thread(_collect, pid, pipe))
    try:
        text = await asyncio.shield(collected)
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        raise
    finally:
        os.close(handle)
    try:
        told: tuple[float, T] = pickle.loads(text)  # noqa: S301 - our own copy wrote it
    except Exception:  # noqa: BLE001 - whatever it was, the work is done again where it can be seen
        return None
    return told


def _collect(pid: int, pipe: int) -> bytes:
    with os.fdopen(pipe, "rb") as source:
        text = source.read()
    os.waitpid(pid, 0)
    return text


def _forked(work: Callable[[], object]) -> tuple[int, int, int]:
    """The copy's number and handle, and where to read what it says.

    No signal reaches a copy that still has our handlers.
    """
    source, sink = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads: the copy waits for none of them
            pid = os.fork()
        if pid == 0:
            _be_a_copy(work, sink)
        handle = os.pidfd_open(pid)  # it has not been waited for: the number is its own
    except OSError:
        os.close(source)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(sink)
    return pid, handle, source


def _be_a_copy(work: Callable[[], object], sink: int) -> NoReturn:
    try:
        gc.disable()  # it would touch, and so copy, all that there is
        signal.set_wakeup_fd(-1)
        for number in _KNOWN:
            signal.signal(number, signal.SIG_DFL)
        _close_all_but(sink)
        resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_S, LONGEST_S))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        began = time.thread_time()
        answer: Any = work()
        _write(sink, pickle.dumps((time.thread_time() - began, answer)))
    finally:
        os._exit(0)


def _close_all_but(kept: int) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - names are numbers here
        if number != kept:
            with contextlib.suppress(OSError):  # that of the listing is closed already
                os.close(number)


def _write(sink: int, text: bytes) -> None:
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(sink, text) :]
