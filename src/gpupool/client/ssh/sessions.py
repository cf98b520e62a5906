"""SSH sessions as programs of the pool: shell, command, and file transfer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import asyncssh
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, WebSocketException

from gpupool.client.client import Client
from gpupool.client.ssh.target import SessionProgram, SessionTimes, SshTarget, accepted_variables
from gpupool.client.transport.websocket_dialer import REFUSED, WebSocketDialer
from gpupool.domain.errors import EXIT_POOL_ERROR, GpupoolError
from gpupool.domain.protocol import frames
from gpupool.specs.limits import MAX_TERMINAL

HAS_SERVER = b"S"
NEEDS_SERVER = b"P"

# The file server (SFTP) of a workload: that of OpenSSH where the workload has it. Otherwise sftp_server.py is sent over
# standard input to the workload's Python. The first byte of output says which of the two it is.
SFTP_SERVER = (Path(__file__).parent / "sftp_server.py").read_bytes()
_PLACES = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec", "/usr/lib/misc")
_READ_SERVER = f"import sys;exec(compile(sys.stdin.buffer.read({len(SFTP_SERVER)}),'sftp_server.py','exec'))"

# A POSIX shell runs this. Paths of clients never become part of it.
SFTP_COMMAND = (
    f"for d in {' '.join(_PLACES)}; do "
    f'if [ -x "$d/sftp-server" ]; then printf {HAS_SERVER.decode()}; exec "$d/sftp-server"; fi; done; '
    "for p in python3 python; do if command -v $p >/dev/null; then "
    f'printf {NEEDS_SERVER.decode()}; exec $p -c "{_READ_SERVER}"; fi; done; '
    "echo 'gpupool: file transfer needs sftp-server or Python 3 in the workload' >&2; exit 127"
)

MAX_PENDING_BYTES = 1 << 20  # bytes of input on their way to the program; then the SSH client has to wait
_PIECE = 256 << 10
_EXITED = "exited"
Channel = asyncssh.SSHServerChannel[bytes]
Tell = Callable[[str], None]


class ProgramSession(asyncssh.SSHServerSession[bytes]):
    """One session channel and its program, which ends with the channel."""

    def __init__(self, client: Client, dialer: WebSocketDialer, target: SshTarget, times: SessionTimes) -> None:
        self._client = client
        self._dialer = dialer
        self._target = target
        self._times = times
        self._command: str | None = None
        self._sftp = False
        self._size: tuple[int, int] | None = None
        self._term = ""
        self._pending: deque[tuple[int, bytes]] = deque()  # frames for the program
        self._pending_bytes = 0
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._may_send = asyncio.Event()  # input goes to the program
        self._may_send.set()
        self._task: asyncio.Task[None] | None = None

    # Requests of the client

    def connection_made(self, chan: Channel) -> None:
        """Store the channel."""
        self._chan = chan

    def pty_requested(self, term_type: str, term_size: Any, term_modes: Any) -> bool:  # noqa: ARG002 - of asyncssh
        """Accept a terminal."""
        self._term, self._size = term_type, _size(term_size[1], term_size[0])
        return True

    def shell_requested(self) -> bool:
        """Accept a shell."""
        return True

    def exec_requested(self, command: str) -> bool:
        """Accept a command."""
        self._command = command
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        """Accept file transfer; there are no other subsystems."""
        self._sftp = subsystem == "sftp"
        if self._sftp:
            self._command, self._size = SFTP_COMMAND, None
            self._may_send.clear()
        return self._sftp

    def session_started(self) -> None:
        """Start the program."""
        self._task = asyncio.create_task(self._run())

    def data_received(self, data: bytes, datatype: Any) -> None:  # noqa: ARG002 - of asyncssh
        """Queue input for the program."""
        for at in range(0, len(data), _PIECE):
            self._put(frames.STDIN, data[at : at + _PIECE])
        if self._pending_bytes > MAX_PENDING_BYTES:
            self._chan.pause_reading()

    def eof_received(self) -> bool:
        """Queue the end of input; the channel stays open for output."""
        self._put(frames.STDIN_EOF)
        return True

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:  # noqa: ARG002
        """Queue the new size."""
        self._size = _size(height, width)
        self._put(frames.RESIZE, frames.pack_size(*self._size))

    def signal_received(self, signal: str) -> None:
        """Queue a signal for the foreground processes."""
        if (number := _signal_number(signal)) is not None:
            self._put(frames.SIGNAL, bytes([number]))

    def pause_writing(self) -> None:
        """Stop reading output until the SSH client has taken some."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Continue to read output."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of asyncssh
        """End the program with its channel."""
        if self._task is not None:
            self._task.cancel()

    def _put(self, kind: int, payload: bytes = b"") -> None:
        self._pending.append((kind, payload))
        self._pending_bytes += len(payload)
        self._news.set()

    # The program

    async def _run(self) -> None:
        try:
            await self._run_program()
        except GpupoolError as error:
            self._fail(error.message)
        except (OSError, WebSocketException, TimeoutError) as error:
            self._fail(f"The connection to the pool was lost: {str(error) or type(error).__name__}.")

    def _fail(self, sentence: str) -> None:
        if not self._chan.is_closing():
            self._chan.write_stderr(f"gpupool: {sentence}\r\n".encode())
            self._chan.exit(EXIT_POOL_ERROR)

    async def _run_program(self) -> None:
        env = accepted_variables(cast("dict[str, str]", dict(self._chan.get_environment())))
        if self._size is not None:
            env |= accepted_variables({"TERM": self._term})
        times = replace(self._times, linger=None) if self._sftp else self._times
        request = SessionProgram(self._command, env, self._size, times).request(self._target)
        program = await asyncio.to_thread(self._client.submit, request)
        started = await asyncio.to_thread(self._client.wait_until, "started", program.id)
        if started.state.final:
            message = started.reason.message if started.reason is not None else ""
            self._fail(message or f"The program could not be started on {self._target.name}.")
            return
        async with await self._dialer.connect(SshTarget(program.id, 0, "").path("attach")) as stream:
            rows, columns = self._size or (0, 0)
            hello = {"version": frames.VERSION, "rows": rows, "columns": columns, "stdin": True}
            await stream.send(frames.encode(frames.HELLO, json.dumps(hello).encode()))
            up = asyncio.create_task(self._send_input(stream))
            try:
                await self._receive_output(stream)
            finally:
                up.cancel()
                await asyncio.gather(up, return_exceptions=True)

    async def _send_input(self, stream: ClientConnection) -> None:
        await self._may_send.wait()
        with contextlib.suppress(ConnectionClosed):
            while True:
                while self._pending:
                    kind, payload = self._pending.popleft()
                    await stream.send(frames.encode(kind, payload))
                    self._pending_bytes -= len(payload)
                    if self._pending_bytes <= MAX_PENDING_BYTES // 2:
                        self._chan.resume_reading()
                self._news.clear()
                await self._news.wait()

    async def _receive_output(self, stream: ClientConnection) -> None:
        buffer = bytearray()
        async for message in stream:
            buffer += message if isinstance(message, bytes) else message.encode()
            for kind, payload in frames.decode(buffer):
                if kind == frames.EXIT:
                    self._exit(json.loads(payload))
                    return
                if kind == frames.STDOUT and not self._may_send.is_set():
                    await self._start_sftp(stream, payload)
                else:
                    self._write(kind, payload)
            await self._writable.wait()
        code, reason = stream.close_code or 0, stream.close_reason or ""
        self._fail(reason.partition(": ")[2] if code >= REFUSED else "The connection to the program was lost.")

    async def _start_sftp(self, stream: ClientConnection, output: bytes) -> None:
        """Send the file server first if the workload has none; the client's input comes after it."""
        if output[:1] == NEEDS_SERVER:
            await stream.send(frames.encode(frames.STDIN, SFTP_SERVER))
        self._may_send.set()
        self._chan.write(output[1:])

    def _write(self, kind: int, payload: bytes) -> None:
        if kind == frames.STDOUT:
            self._chan.write(payload)
        elif kind == frames.STDERR:
            self._chan.write_stderr(payload)
        elif kind == frames.NOTE:
            self._chan.write_stderr(b"gpupool: " + payload.rstrip() + b"\r\n")

    def _exit(self, report: dict[str, Any]) -> None:
        reason, message, number = report.get("reason"), report.get("message") or "", report.get("signal")
        if reason != _EXITED or message:
            self._chan.write_stderr(f"gpupool: {message or _REASONS.get(str(reason), str(reason))}\r\n".encode())
        if reason == _EXITED and number is not None and number in _SIGNAL_NAMES:
            self._chan.exit_with_signal(_SIGNAL_NAMES[number])
        else:
            self._chan.exit(int(report.get("status", EXIT_POOL_ERROR)) & 0xFF)


_REASONS = {
    "stopped": "The workload has ended, or the session was stopped.",
    "time_limit": "The session reached its time limit.",
    "client_gone": "The client disconnected.",
    "shepherd_lost": "The node lost the session.",
    "node_restarted": "The node was restarted.",
    "fenced": "The node had no contact with the pool for too long.",
}
# The signals of RFC 4254; others are exit statuses.
_SIGNAL_NAMES = {
    int(getattr(signal, f"SIG{name}")): name
    for name in ("ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM", "USR1", "USR2")
}


def _signal_number(name: str) -> int | None:
    found = getattr(signal, f"SIG{name.removeprefix('SIG')}", None)
    return int(found) if isinstance(found, signal.Signals) else None


def _size(rows: int, columns: int) -> tuple[int, int]:
    """Return a size that the pool accepts; a client without a terminal of its own sends zeros."""
    return min(max(rows, 0) or 24, MAX_TERMINAL), min(max(columns, 0) or 80, MAX_TERMINAL)
