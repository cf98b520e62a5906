"""Suspends the processes of a lease: what they have in GPU memory moves to the host's memory, and back.

Other work can then use the GPU while the processes live on; their calls of the driver wait in the share library. The
order of a suspension: the lease's word is set, so that no new call begins; each process is locked, then checkpointed;
the driver shows none of them on the GPU. A resumption is the reverse. Both ask the driver for the state of each process
first, so that they can be repeated after any interruption.

The driver restores only to the GPU from which it took the memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.node.host import process_tree
from gpupool.node.host.log import log_event
from gpupool.node.sharing.slices.gpu_processes import GpuProcesses
from gpupool.node.sharing.slices.lease_folder import LeaseFolder
from gpupool.node.sharing.slices.pages import LedgerSlot

RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2  # CUprocessState
_SUCCESS, _OUT_OF_MEMORY, _NOT_READY = 0, 2, 600  # CUresult
_NAMES = {2: "out of memory", 401: "illegal state", 600: "a call or work on the GPU did not end in time"}
SETTLE_S = 0.1  # between the word and the first lock: a thread may have read the word just before
COPY_TIMEOUT_S = 120.0  # for the memory of one process in one direction
LOCK_STEP_S = 0.5
MIN_LOCK_S = 0.001
START_TIMEOUT_S = 60.0
HELPER_LOSSES = 2  # during one suspension or resumption
ROOM_TIMEOUT_S = 10.0  # a program that ends may release its memory a moment after its lease
ROOM_PAUSE_S = 0.25
_REPLY_MARGIN_S = 5.0
HELPER = Path(__file__).with_name("checkpoint_process.py")
MEMINFO = Path("/proc/meminfo")
MIN_LEFT_BYTES = 1 << 30  # of the host's memory after a suspension


class HelperLostError(GpupoolError):
    """The helper process has not answered; the state of the process that it was asked about is unknown."""


class CheckpointHelper:
    """The client of ``checkpoint_process``; starts it when it is first needed and after it has died."""

    def __init__(self, driver: str, env: Mapping[str, str]) -> None:
        self._driver = driver
        self._env = dict(env)
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Return its process id; None if it does not run."""
        return None if self._process is None else self._process.pid

    async def ask(self, call: str, pid: int, timeout_s: float = COPY_TIMEOUT_S) -> tuple[int, int | None]:
        """Make a call for a process; return the CUresult and its state afterwards (None: not known to the driver).

        Raises ``HelperLostError`` if it does not answer.
        """
        request = {"call": call, "pid": pid, "timeout_ms": int(timeout_s * 1000)}
        async with self._turn:
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    process = await self._started()
                async with asyncio.timeout(timeout_s + _REPLY_MARGIN_S):
                    assert process.stdin is not None  # noqa: S101 - for the type checker
                    process.stdin.write(json.dumps(request).encode() + b"\n")
                    await process.stdin.drain()
                    reply = await self._reply(process)
            except (OSError, TimeoutError, ValueError) as error:
                await self._kill()
                sentence = f"The helper did not {call} process {pid}: {error!r}."
                raise HelperLostError(ErrorCode.UNSUPPORTED, sentence, "See the node's log.") from error
        return reply["result"], reply["state"]

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-I", str(HELPER), self._driver]
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=self._env, cwd="/")
        result = (await self._reply(self._process))["result"]
        if result != _SUCCESS:
            raise OSError(f"the driver cannot suspend processes (CUDA error {result})")
        return self._process

    @staticmethod
    async def _reply(process: asyncio.subprocess.Process) -> dict[str, Any]:
        assert process.stdout is not None  # noqa: S101 - for the type checker
        line = await process.stdout.readline()
        if not line:
            raise OSError("the helper process has ended")
        found = json.loads(line)
        return {"result": int(found["result"]), "state": found["state"]}

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def close(self) -> None:
        """End it."""
        await self._kill()


@dataclass(frozen=True, slots=True)
class SuspendedGpu:
    """The GPU of a lease whose processes are to be suspended or resumed."""

    folder: LeaseFolder
    uuid: str
    pids: Callable[[], frozenset[int]]  # returns the processes of the programs on the lease; may block
    memory_mib: int | None  # the limit of their host memory


class Suspender:
    """Suspends and resumes leases on one GPU."""

    def __init__(self, helper: CheckpointHelper, nvml: str) -> None:
        self._helper = helper
        self._nvml = GpuProcesses(nvml)

    async def suspend(self, gpu: SuspendedGpu, lock_timeout_s: float) -> None:
        """Suspend all processes of a lease. Raises ``GpupoolError``; they run again then, unless the driver failed."""
        try:
            gpu.folder.ask_again()
            gpu.folder.set_suspended(suspended=True)
            await asyncio.sleep(SETTLE_S)
            used = sum(slot.ledger_bytes for slot in gpu.folder.read_slots(0))
            require_room(used, gpu.memory_mib, await asyncio.to_thread(gpu.pids))
            deadline = time.monotonic() + lock_timeout_s
            await _repeated(lambda: self._suspend(gpu, deadline))
        except (GpupoolError, OSError) as error:
            await self._roll_back(gpu)
            if isinstance(error, OSError):
                raise _refusal(str(error)) from error
            raise

    async def _suspend(self, gpu: SuspendedGpu, deadline: float) -> None:
        users = await self._users(gpu)
        for user in users:
            await self._lock(user, deadline)
        for user in users:
            await self._advance(user, LOCKED, "checkpoint")
        await self._require_empty(gpu)

    async def resume(self, gpu: SuspendedGpu) -> None:
        """Let all processes of a lease run again; repetitions change nothing. Raises ``GpupoolError``, OSError."""
        await _repeated(lambda: self._resume(gpu))
        gpu.folder.set_suspended(suspended=False)

    async def _resume(self, gpu: SuspendedGpu) -> None:
        users = await self._users(gpu)
        for user in users:
            await self._restore(user)
        for user in users:
            await self._advance(user, LOCKED, "unlock")

    async def _roll_back(self, gpu: SuspendedGpu) -> None:
        try:
            await self.resume(gpu)
        except (GpupoolError, OSError) as error:
            log_event("processes not resumed", lease=gpu.folder.lease, error=repr(error))

    async def _state(self, user: LedgerSlot) -> int | None:
        """Return the state of a process; None if it has ended, or has no memory because the driver does not know it."""
        return (await self._helper.ask("state", user.pid))[1] if slot_lives(user) else None

    async def _advance(self, user: LedgerSlot, state: int, call: str) -> None:
        """Make a call for a process if it is in this state."""
        if await self._state(user) != state:
            return
        result, now = await self._helper.ask(call, user.pid)
        if result != _SUCCESS and now is not None:
            raise _failure(call, user.pid, result)

    async def _lock(self, user: LedgerSlot, deadline: float) -> None:
        """Lock a process, in steps: the helper answers for other leases between them."""
        while await self._state(user) == RUNNING:
            left_s = deadline - time.monotonic()
            result, now = await self._helper.ask("lock", user.pid, min(LOCK_STEP_S, max(MIN_LOCK_S, left_s)))
            if result == _SUCCESS or now is None:
                return
            if result != _NOT_READY or left_s <= LOCK_STEP_S:
                raise _failure("lock", user.pid, result)

    async def _restore(self, user: LedgerSlot) -> None:
        deadline = time.monotonic() + ROOM_TIMEOUT_S
        while await self._state(user) == CHECKPOINTED:
            result, now = await self._helper.ask("restore", user.pid)
            if result == _SUCCESS or now is None:
                return
            if result != _OUT_OF_MEMORY or time.monotonic() > deadline:
                raise _failure("restore", user.pid, result)
            await asyncio.sleep(ROOM_PAUSE_S)

    @staticmethod
    async def _users(gpu: SuspendedGpu) -> tuple[LedgerSlot, ...]:
        """Return the slots of the processes that have attached to the lease and live.

        They write their slots themselves, so only processes of the lease count.
        """
        slots, own = gpu.folder.read_slots(0), await asyncio.to_thread(gpu.pids)
        return tuple({slot.pid: slot for slot in slots if slot.pid in own and slot_lives(slot)}.values())

    async def _require_empty(self, gpu: SuspendedGpu) -> None:
        """Require that no process of the lease has memory on the GPU by the driver's count."""
        used = (await asyncio.to_thread(self._nvml.used, {gpu.uuid})).get(gpu.uuid)
        if used is None:
            raise _refusal("the driver does not report the processes on the GPU")
        left = sorted(pid for pid in await asyncio.to_thread(gpu.pids) if used.get(pid, 0) > 0)
        if left:
            raise _refusal(f"the driver still shows memory of process {left[0]} on the GPU")

    @property
    def pid(self) -> int | None:
        """Return the id of the helper process; None if it does not run."""
        return self._helper.pid

    async def close(self) -> None:
        """End the helper process."""
        await self._helper.close()


async def _repeated(work: Callable[[], Awaitable[None]]) -> None:
    """Do the work, again if the helper was lost: each step first asks for the state of the process."""
    for _ in range(HELPER_LOSSES):
        with contextlib.suppress(HelperLostError):
            return await work()
    return await work()


def require_room(used_bytes: int, limit_mib: int | None, pids: Iterable[int]) -> None:
    """Require that the memory of the machine, and the limit of a program, have room for what it has on its GPU.

    Raises ``GpupoolError``.
    """
    free = _available_bytes() - MIN_LEFT_BYTES
    if limit_mib is not None:
        free = min(free, (limit_mib << 20) - sum(_resident_bytes(pid) for pid in pids))
    if free < used_bytes:
        short = f"{max(0, free) >> 20} MiB of memory are free for it, and {used_bytes >> 20} MiB are needed"
        raise _refusal(short)


def slot_lives(slot: LedgerSlot) -> bool:
    """Return whether the process that has attached with a slot still lives."""
    return process_tree.start_time(slot.pid) == slot.start


def _failure(call: str, pid: int, result: int) -> GpupoolError:
    return _refusal(f"the driver did not {call} process {pid}: {_NAMES.get(result, f'CUDA error {result}')}")


def _refusal(why: str) -> GpupoolError:
    return GpupoolError(ErrorCode.UNSUPPORTED, f"The program cannot be suspended: {why}.", "It continues.")


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0  # it has ended


def _available_bytes() -> int:
    lines: Iterable[list[str]] = (line.split() for line in MEMINFO.read_text().splitlines())
    return next((int(words[1]) << 10 for words in lines if words[0] == "MemAvailable:"), 0)
