"""The agent's end of the spawner: start it, ask it to fork, start it again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

from gpupool.domain.errors import ErrorCode, GpupoolError

ANSWER_WAIT_S = 10.0
_ANSWER_LIMIT = 64


class Spawner:
    """Asks one fork server for shepherds, one request at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The fork server's pid; None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Bring the fork server into being."""
        self.stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(0)
        # Not -I: it would hide a gpupool that was installed with `pip install --user`.
        command = [sys.executable, "-E", "-P", "-X", "utf8", "-m", "gpupool.node.spawner"]
        with theirs:
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        self._control = ours

    def stop(self) -> None:
        """Let it go (it ends by itself) and reap it."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    async def fork(self, folder: Path, lock_fd: int, listener_fd: int) -> int:
        """The pid of a new shepherd for a folder; both descriptors stay ours to close.

        Raises ``ConnectionError`` when the fork server died: the shepherd may or may not exist, the lock will tell.
        Raises ``GpupoolError(INTERNAL)`` when the machine has no room for another process.
        """
        async with self._turn:
            if self._control is None:
                self.start()
            try:
                answer = await asyncio.wait_for(self._exchange(folder, lock_fd, listener_fd), ANSWER_WAIT_S)
            except (OSError, TimeoutError) as error:
                self._discard()
                raise ConnectionError("the spawner died") from error
        if answer < 0:
            raise GpupoolError(
                ErrorCode.INTERNAL,
                f"The node could not start another process: {os.strerror(-answer)}.",
                "Check the limits of processes and memory of the account the pool runs as.",
            )
        return answer

    async def _exchange(self, folder: Path, lock_fd: int, listener_fd: int) -> int:
        control = self._control
        if control is None:
            raise ConnectionError("no spawner")
        socket.send_fds(control, [os.fsencode(folder)], [lock_fd, listener_fd])
        data = await asyncio.get_running_loop().sock_recv(control, _ANSWER_LIMIT)
        if not data:
            raise ConnectionError("the spawner hung up")
        return int(data)

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            if self._process is not None:
                self._process.kill()
        self.stop()
