"""Keeps the native arbiter running: a child that grants GPU time, told of leases over its standard input.

It lives as long as the agent does (and is killed by the kernel with it). When it dies by itself it is started again,
at once the first time, and told of every lease anew: all that it knows is in the pages of the leases.
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

from gpupool.node.journal import say

Message = dict[str, Any]
DELAYS_S = (0.0, 0.1, 0.5, 2.0, 5.0)  # before it is started for the second, third ... time in a row
HEALTHY_LIFE_S = 20.0
_END_S = 2.0
_CHUNK = 64 << 10
_LINE_LIMIT = 1 << 20
_PENDING_LIMIT = 4 << 20  # bytes that it has not read: it is stuck


class Arbiter:
    """One child, its leases, and what it says (``heard``, one JSON object each)."""

    def __init__(self, program: Path, heard: Callable[[Message], None]) -> None:
        self._program = program
        self._heard = heard
        self._process: subprocess.Popen[bytes] | None = None
        self._leases: dict[Path, dict[int, int]] = {}  # with the last corrections of each GPU
        self._pending = bytearray()
        self._partial = bytearray()
        self._born = 0.0
        self._deaths = 0
        self._restart: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """Its process; None while there is none."""
        return None if self._process is None else self._process.pid

    # -- what it is told ---------------------------------------------------------------------------------------------

    def add(self, lease: Path) -> None:
        """Mind this lease from now on; the first one starts the arbiter."""
        self._leases[lease] = {}
        if self._process is not None:
            self._tell(f"add {lease}")
        elif self._restart is None:
            self._start()

    def remove(self, lease: Path) -> None:
        """Forget it, before its folder goes."""
        if self._leases.pop(lease, None) is not None and self._process is not None:
            self._tell(f"remove {lease}")

    def correct(self, lease: Path, gpu: int, amount: int) -> None:
        """What the driver counts for the lease on its GPU number ``gpu`` beyond its ledgers, in bytes."""
        known = self._leases.get(lease)
        if known is None or known.get(gpu, 0) == amount:
            return
        known[gpu] = amount
        if self._process is not None:
            self._tell(f"correct {lease} {gpu} {amount}")

    def _tell(self, line: str) -> None:
        if len(self._pending) > _PENDING_LIMIT:
            self.kill("it does not read")
            return
        self._pending += f"{line}\n".encode()
        self._flush()

    def _flush(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        fd = process.stdin.fileno()
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # an end is seen where it is read from
            while self._pending:
                del self._pending[: os.write(fd, memoryview(self._pending)[:_CHUNK].tobytes())]
        loop = asyncio.get_running_loop()
        if self._pending:
            loop.add_writer(fd, self._flush)
        else:
            loop.remove_writer(fd)

    # -- its life ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._restart = None
        self._born = time.monotonic()
        try:
            self._process = subprocess.Popen([self._program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
        except OSError as error:
            say("arbiter not started", program=str(self._program), error=str(error))
            self._try_again()
            return
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None  # noqa: S101 - for the type checker
            os.set_blocking(pipe.fileno(), False)
        asyncio.get_running_loop().add_reader(self._out(), self._on_output)
        for lease, corrections in self._leases.items():
            self._tell(f"add {lease}")
            for gpu, amount in corrections.items():
                self._tell(f"correct {lease} {gpu} {amount}")

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
            self._died()
            return
        self._partial += data
        *lines, rest = self._partial.split(b"\n")
        self._partial = rest if len(rest) <= _LINE_LIMIT else bytearray()
        for line in lines:
            self._on_line(bytes(line))

    def _on_line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            say("arbiter said something else", line=line[:200].decode(errors="replace"))
            return
        if isinstance(message, dict):
            self._heard(message)

    def kill(self, why: str) -> None:
        """End one that does not do its work; another is started."""
        say("arbiter killed", pid=self.pid, why=why)
        if self._process is not None:
            self._process.kill()

    def _died(self) -> None:
        status = self._let_go()
        self._deaths = 1 if time.monotonic() - self._born > HEALTHY_LIFE_S else self._deaths + 1
        say("arbiter died", status=status, deaths=self._deaths, leases=len(self._leases))
        self._try_again()

    def _try_again(self) -> None:
        delay_s = DELAYS_S[min(max(self._deaths, 1), len(DELAYS_S)) - 1]
        self._restart = asyncio.get_running_loop().call_later(delay_s, self._start)

    def _let_go(self) -> int | None:
        """Close the pipes and reap; the status it ended with."""
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
            return process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    async def close(self) -> None:
        """The agent ends, and the arbiter with it."""
        if self._restart is not None:
            self._restart.cancel()
        if self._process is not None:
            self._process.terminate()
            self._let_go()
