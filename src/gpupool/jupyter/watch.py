"""The states of all kernels of this process, kept current by one event stream.

Jupyter asks every three seconds whether a kernel is alive. The answer comes from this cache, so an idle kernel costs
the control plane no requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from gpupool.client import Client, discovery
from gpupool.client.transport.endpoint import newer_login, resolve_endpoint
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.work.workload import ReplicaState

log = logging.getLogger(__name__)

RECONNECT_DELAY_S = 2.0
SECOND_LOOK_DELAY_S = 0.2
MAX_CALLS = 8  # requests of this process to the pool at a time
CHECK_S = 10.0  # a pool that restarts answers again in this time; a kernel's start tries for no longer
_GONE = frozenset({ErrorCode.UNKNOWN_WORKLOAD, ErrorCode.NOT_FOUND, ErrorCode.FORBIDDEN})
LOGIN_REFUSALS = frozenset({ErrorCode.UNAUTHENTICATED, ErrorCode.TOO_MANY_ATTEMPTS})

T = TypeVar("T")


class KernelPhase(StrEnum):
    """The phases of a kernel's workload."""

    WAITING = "waiting"  # in the queue
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"  # its program ends and starts again on the same GPUs
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class KernelState:
    """The state of a kernel in the pool. ``code`` and ``message`` are its latest reason."""

    workload: str
    name: str
    phase: KernelPhase
    attempt: int = 0
    exit_status: int | None = None
    code: str = ""
    message: str = ""
    other_machine: bool = False  # not the control plane's
    queued_again: bool = False  # ended, but the workload is in the queue again


def read_state(client: Client, workload: str) -> KernelState:
    """Return the present state of a kernel's workload. Raises ``GpupoolError``."""
    try:
        view = client.detail(workload)
    except GpupoolError as error:
        if error.code not in _GONE:
            raise
        return KernelState(workload, workload, KernelPhase.ENDED, code=str(error.code), message=error.message)
    replica = view.replicas[0]
    code, message = replica.reason, replica.message
    phase, again = KernelPhase.RUNNING, False
    if view.state.final:
        phase = KernelPhase.ENDED
        if view.reason is not None:
            code, message = view.reason.code, view.reason.message
    elif replica.state is ReplicaState.PENDING:
        again = replica.attempt > 0 and code != Reason.RESTARTED_BY_USER
        phase = KernelPhase.ENDED if again else KernelPhase.WAITING
    elif replica.state is ReplicaState.STARTING:
        phase = KernelPhase.STARTING
    elif replica.state is ReplicaState.STOPPING and code == Reason.RESTARTED_BY_USER:
        phase = KernelPhase.RESTARTING
    status = view.exit_status if view.exit_status is not None else replica.exit_status
    return KernelState(view.id, view.name, phase, replica.attempt, status, code, message, replica.relayed, again)


class WatchedKernel:
    """The cached state of one kernel. Thread-safe."""

    def __init__(self, state: KernelState, on_change: Callable[[], None]) -> None:
        self.state = state
        self._on_change = on_change
        self._reading = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._lock = threading.Lock()

    def refresh(self, client: Client) -> bool:
        """Read and store the present state; return whether it is a new one. Raises ``GpupoolError``."""
        with self._reading:  # the answer to an earlier question must not replace a later one
            return self.update(read_state(client, self.state.workload))

    def update(self, state: KernelState) -> bool:
        """Store a state, wake those who wait for a change, and return whether it is a new one."""
        with self._lock:
            if state == self.state:
                return False
            self.state = state
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_resolve, future)
        self._on_change()
        return True

    async def changed(self, seen: KernelState, timeout_s: float | None = None) -> bool:
        """Wait until the state differs from ``seen``; return False after ``timeout_s`` seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            if self.state != seen:
                return True
            entry = (asyncio.get_running_loop(), future)
            self._waiters.append(entry)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            with self._lock:
                if entry in self._waiters:
                    self._waiters.remove(entry)
        return True


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class PoolWatcher:
    """The connection of this process to one pool, and the kernels that it follows there."""

    def __init__(self, client: Client, pool: str, *, remote: bool = False) -> None:
        self.client = client
        self._endpoint = resolve_endpoint()
        self.pool = pool
        self.remote = remote  # over the network
        self._kernels: dict[str, WatchedKernel] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._calls = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="gpupool-kernels")

    async def call(self, function: Callable[[], T]) -> T:
        """Run a blocking request in a thread of this watcher."""
        return await asyncio.get_running_loop().run_in_executor(self._calls, function)

    async def count_nodes(self) -> int:
        """Return the number of nodes; raises ``GpupoolError`` soon if the pool does not answer."""

        def count() -> int:
            with Client(retry_s=CHECK_S) as client:
                return len(client.nodes())

        return await self.call(count)

    def watch(self, state: KernelState, on_change: Callable[[], None]) -> WatchedKernel:
        """Follow a kernel from now on. ``on_change`` is called in another thread."""
        kernel = WatchedKernel(state, on_change)
        with self._lock:
            self._kernels[state.workload] = kernel
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="gpupool-events", daemon=True)
                self._thread.start()
        return kernel

    def forget(self, kernel: WatchedKernel) -> None:
        """Stop to follow a kernel; the stream ends with the next event if it was the last one."""
        with self._lock:
            if self._kernels.get(kernel.state.workload) is kernel:
                del self._kernels[kernel.state.workload]

    def refresh(self, kernel: WatchedKernel) -> KernelState:
        """Read the state of a kernel now. Raises ``GpupoolError``."""
        kernel.refresh(self.client)
        return kernel.state

    def renew(self) -> None:
        """Use a newer login to this pool if there is one."""
        endpoint = newer_login(self._endpoint)
        if endpoint is not None:
            self._endpoint, self.client = endpoint, Client()

    def _follow(self) -> None:
        said = ""
        while not self._finished():
            self.renew()
            try:
                self._follow_stream()
                said = ""
            except GpupoolError as error:
                if str(error) != said:
                    log.warning("The event stream of the pool is interrupted: %s", error)
                said = str(error)
                if error.code in LOGIN_REFUSALS:
                    for kernel in self._followed():
                        kernel.update(replace(kernel.state, code=str(error.code), message=str(error)))
                time.sleep(RECONNECT_DELAY_S)

    def _follow_stream(self) -> None:
        last = max((event.id for event in self.client.events(newest=1)), default=0)
        for kernel in self._followed():  # what changed before the stream begins
            self.refresh(kernel)
        for event in self.client.events(follow=True, after_id=last):
            with self._lock:
                changed = self._kernels.get(event.workload or "")
            if changed is not None:
                self._refresh_after_event(changed)
            elif self._finished():
                return

    def _refresh_after_event(self, kernel: WatchedKernel) -> None:
        if not kernel.refresh(self.client):
            # The event may have been readable before the state that it announces.
            time.sleep(SECOND_LOOK_DELAY_S)
            kernel.refresh(self.client)

    def _followed(self) -> list[WatchedKernel]:
        with self._lock:
            return list(self._kernels.values())

    def _finished(self) -> bool:
        """Return whether no kernel is left; the next one starts a new thread."""
        with self._lock:
            if not self._kernels:
                self._thread = None
            return not self._kernels


_watchers: dict[str, PoolWatcher] = {}
_watchers_lock = threading.Lock()


def watcher_of_pool() -> PoolWatcher:
    """Return this process's watcher of the pool that its environment names. Raises ``GpupoolError``."""
    place = discovery.find_pool()
    pool = repr(place)
    with _watchers_lock:
        if pool not in _watchers:
            _watchers[pool] = PoolWatcher(Client(), pool, remote=isinstance(place, discovery.Remote))
        _watchers[pool].renew()
        return _watchers[pool]
