"""Supervision of the native arbiter: a child process that grants GPU time to leases.

It ends with the agent (the kernel kills it too). If it dies by itself, it is started again, the first time without
delay. It then gets all leases again, because its whole state is in their pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpupool.node.host.log import log_event

Message = dict[str, Any]
DELAYS_S = (0.0, 0.1, 0.5, 2.0, 5.0)  # before the first, second ... restart in a row
HEALTHY_LIFE_S = 20.0
_END_TIMEOUT_S = 2.0
_CHUNK = 64 << 10
_MAX_LINE_BYTES = 1 << 20
_MAX_PENDING_BYTES = 4 << 20  # unread bytes; above this it is stuck


class Arbiter:
    """One child process, its leases, and its messages (``heard`` is called with each JSON object)."""

    def __init__(self, program: Path, heard: Callable[[Message], None]) -> None:
        self._program = program
        self._heard = heard
        self._process: subprocess.Popen[bytes] | None = None
        self._leases: dict[Path, dict[int, int]] = {}  # with the last corrections of each GPU
        self._pending = bytearray()
        self._partial = bytearray()
        self._started_at = 0.0
        self._deaths = 0
        self._restart: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """Return the pid; None if it is not running."""
        return None if self._process is None else self._process.pid

    # -- commands ----------------------------------------------------------------------------------------------------

    def add(self, lease: Path) -> None:
        """Add a lease; the first one starts the arbiter."""
        self._leases[lease] = {}
        if self._process is not None:
            self._send(f"add {lease}")
        elif self._restart is None:
            self._start()

    def remove(self, lease: Path) -> None:
        """Remove a lease, before its folder is deleted."""
        if self._leases.pop(lease, None) is not None and self._process is not None:
            self._send(f"remove {lease}")

    def correct(self, lease: Path, gpu: int, amount: int) -> None:
        """Send how many bytes the driver counts for the lease on GPU number ``gpu`` beyond its ledgers."""
        known = self._leases.get(lease)
        if known is None or known.get(gpu, 0) == amount:
            return
        known[gpu] = amount
        if self._process is not None:
            self._send(f"correct {lease} {gpu} {amount}")

    def _send(self, line: str) -> None:
        if len(self._pending) > _MAX_PENDING_BYTES:
            self.kill("it does not read")
            return
        self._pending += f"{line}\n".encode()
        self._flush()

    def _flush(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        fd = process.stdin.fileno()
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # the end is noticed when reading
            while self._pending:
                del self._pending[: os.write(fd, memoryview(self._pending)[:_CHUNK].tobytes())]
        loop = asyncio.get_running_loop()
        if self._pending:
            loop.add_writer(fd, self._flush)
        else:
            loop.remove_writer(fd)

    # -- the process -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._restart = None
        self._started_at = time.monotonic()
        try:
            self._process = subprocess.Popen([self._program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
        except OSError as error:
            log_event("arbiter not started", program=str(self._program), error=str(error))
            self._schedule_restart()
            return
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None  # noqa: S101 - for the type checker
            os.set_blocking(pipe.fileno(), False)
        asyncio.get_running_loop().add_reader(self._out(), self._on_output)
        for lease, corrections in self._leases.items():
            self._send(f"add {lease}")
            for gpu, amount in corrections.items():
                self._send(f"correct {lease} {gpu} {amount}")

    def _out(self) -> int:
        assert self._process is not None  # noqa: S101 - for the type checker
        assert self._process.stdout is not None  # noqa: S101 - likewise
        return self._process.stdout.fileno()

    def _on_output(self) -> None:
        try:
            data = os.read(self._out(), _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._on_exit()
            return
        self._partial += data
        *lines, rest = self._partial.split(b"\n")
        self._partial = rest if len(rest) <= _MAX_LINE_BYTES else bytearray()
        for line in lines:
            self._on_line(bytes(line))

    def _on_line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            log_event("arbiter said something else", line=line[:200].decode(errors="replace"))
            return
        if isinstance(message, dict):
            self._heard(message)

    def kill(self, why: str) -> None:
        """Kill an arbiter that does not work; another one is started."""
        log_event("arbiter killed", pid=self.pid, why=why)
        if self._process is not None:
            self._process.kill()

    def _on_exit(self) -> None:
        status = self._reap()
        self._deaths = 1 if time.monotonic() - self._started_at > HEALTHY_LIFE_S else self._deaths + 1
        log_event("arbiter died", status=status, deaths=self._deaths, leases=len(self._leases))
        self._schedule_restart()

    def _schedule_restart(self) -> None:
        delay_s = DELAYS_S[min(max(self._deaths, 1), len(DELAYS_S)) - 1]
        self._restart = asyncio.get_running_loop().call_later(delay_s, self._start)

    def _reap(self) -> int | None:
        """Close the pipes and reap the process; return its exit status."""
        process, self._process = self._process, None
        self._pending.clear()
        self._partial.clear()
        if process is None:
            return None
        for pipe, forget in ((process.stdin, "remove_writer"), (process.stdout, "remove_reader")):
            if pipe is not None:
                getattr(asyncio.get_running_loop(), forget)(pipe.fileno())
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            return process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    async def close(self) -> None:
        """End the arbiter with the agent."""
        if self._restart is not None:
            self._restart.cancel()
        if self._process is not None:
            self._process.terminate()
            self._reap()
