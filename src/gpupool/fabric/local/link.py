"""Requests to an agent: JSON lines over its socket, many at once on one connection.

An answer whose line says ``raw`` is followed by so many bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import Gpu, NodeReport
from gpupool.domain.logrecords import Stretch
from gpupool.domain.supervision import ProcessSpec, ProcessStatus
from gpupool.domain.telemetry import NodeSample
from gpupool.domain.wire import gpu_from_dict, look_from_list, report_from_dict
from gpupool.fabric.local.files import LocalFiles

LINE_LIMIT = 16 << 20  # bytes; a list of ten thousand statuses is about four MiB
ANSWER_WAIT_S = 60.0
PING_EVERY_S = 2.0
SILENT_S = 10.0  # without an answer of any kind: the agent, or what lies between, is frozen or cut off
_NAME_LIMIT = 107

OnStatus = Callable[[ProcessStatus], None]


def unreachable(node: str, why: str = "does not answer") -> GpupoolError:
    """The error of a node that cannot be asked."""
    return GpupoolError(ErrorCode.NODE_UNREACHABLE, f"Node {node} {why}.", "See `gpupool status` and the node's log.")


@contextlib.asynccontextmanager
async def connection(socket: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A stream to a unix socket with a path of any length; closed at the end. Raises OSError."""
    name, folder = str(socket), None
    if len(os.fsencode(name)) > _NAME_LIMIT:
        folder = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        name = f"/proc/self/fd/{folder}/{socket.name}"
    try:
        reader, writer = await asyncio.open_unix_connection(name, limit=LINE_LIMIT)
    finally:
        if folder is not None:
            os.close(folder)
    try:
        yield reader, writer
    finally:
        writer.close()


class LocalStream:
    """A raw stream to a program's shepherd, through the agent; see ``domain.frames`` for what travels on it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stack: contextlib.AsyncExitStack
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._stack = stack

    async def read(self, limit: int) -> bytes:
        """Up to ``limit`` bytes; empty at the end, and when the node is gone."""
        try:
            return await self._reader.read(limit)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        """All of it, waiting while the other side is slow. Raises NODE_UNREACHABLE when it is gone."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise unreachable("agent", "hung up") from error

    async def close(self) -> None:
        """Hang up."""
        await self._stack.aclose()


class LocalLink:
    """``services.ports.NodeLink`` over one connection, which its fabric makes and makes again."""

    def __init__(self, name: str, socket: Path) -> None:
        self.name = name
        self._socket = socket
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)
        self._heard = False
        self._pings = 0  # on this connection
        self._answered = 0  # the number of the last one that was answered

    # -- the connection, driven by the fabric ------------------------------------------------------------------------

    async def converse(self, on_up: Callable[[], None], on_status: OnStatus) -> None:
        """Connect, watch, and hear the agent out until it hangs up or falls silent. Raises OSError."""
        async with connection(self._socket) as (reader, writer):
            writer.write(b'{"id":0,"method":"watch"}\n')
            self._writer = writer
            pulse = asyncio.create_task(self._keep_pulse(writer), name=f"pulse {self.name}")
            try:
                while line := await reader.readline():
                    self._heard = True
                    message = json.loads(line)
                    if "raw" in message:
                        message["bytes"] = await self._raw(reader, int(message["raw"]))
                    self._on_message(message, on_up, on_status)
            finally:
                pulse.cancel()
                self._writer = None
                self._fail_all()

    async def _raw(self, reader: asyncio.StreamReader, size: int) -> bytes:
        """What follows the line of an answer; each part of it is a sign of life. Raises OSError."""
        if not 0 <= size <= LINE_LIMIT:
            raise ConnectionAbortedError(f"an answer of {size} bytes")
        parts = []
        while size > 0:
            part = await reader.read(size)
            if not part:
                raise ConnectionResetError("the agent hung up within an answer")
            self._heard = True
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    async def _keep_pulse(self, writer: asyncio.StreamWriter) -> None:
        """Ask for a sign of life every two seconds, and hang up on an agent that gives none.

        Each ping says which one was answered last: only contact that both sides know of counts for the agent, so it
        never believes to have been heard later than this side has heard it (see ``node.contact``).
        """
        self._pings = self._answered = misses = 0
        while misses * PING_EVERY_S < SILENT_S:  # counted, not timed: a stall of this process is nobody's silence
            self._heard = False
            self._ping(writer)
            await asyncio.sleep(PING_EVERY_S)
            misses = 0 if self._heard else misses + 1
        writer.transport.abort()

    def _ping(self, writer: asyncio.StreamWriter) -> None:
        self._pings += 1
        self._expect(-self._pings).add_done_callback(partial(self._on_pong, writer, self._pings))
        ask = {"id": -self._pings, "method": "ping", "params": {"number": self._pings, "answered": self._answered}}
        writer.write(json.dumps(ask, separators=(",", ":")).encode() + b"\n")

    def _on_pong(self, writer: asyncio.StreamWriter, number: int, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        first, self._answered = not self._answered, number
        if first:  # at once, so that the agent knows of the contact before anything is started there
            self._ping(writer)

    def _expect(self, number: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        return future

    def _on_message(self, message: dict[str, Any], on_up: Callable[[], None], on_status: OnStatus) -> None:
        if message.get("event") == "status":
            on_status(ProcessStatus.from_dict(message["status"]))
        elif message.get("id") == 0:
            on_up()
        elif (future := self._waiting.pop(message.get("id", 0), None)) is not None and not future.done():
            _settle(future, message)

    def _fail_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(unreachable(self.name, "hung up"))

    async def _ask(self, method: str, **params: Any) -> Any:
        if self._writer is None:
            raise unreachable(self.name, "is not connected")
        number = next(self._ids)
        future = self._expect(number)
        request = {"id": number, "method": method, "params": params}
        try:
            self._writer.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")
            await self._writer.drain()
            return await asyncio.wait_for(future, ANSWER_WAIT_S)
        except (OSError, TimeoutError) as error:
            raise unreachable(self.name) from error
        finally:
            self._waiting.pop(number, None)

    # -- what the control plane asks ---------------------------------------------------------------------------------

    async def report(self) -> NodeReport:
        """The machine and its GPUs as they are now."""
        return report_from_dict(await self._ask("report"))

    async def gpus(self) -> Sequence[Gpu]:
        """The GPUs with fresh health, foreign processes and use."""
        return [gpu_from_dict(gpu) for gpu in await self._ask("gpus")]

    async def samples(self, after: int) -> Sequence[NodeSample]:
        """The looks at the node that follow one by its number, oldest first."""
        return [look_from_list(self.name, json.loads(text)) for text in await self._ask("samples", after=after)]

    async def list(self) -> Sequence[ProcessStatus]:
        """Every program the agent keeps."""
        return [ProcessStatus.from_dict(status) for status in await self._ask("list")]

    async def start(self, spec: ProcessSpec) -> ProcessStatus:
        """Start a program, or return its status if this key was started before."""
        return ProcessStatus.from_dict(await self._ask("start", spec=spec.to_dict()))

    async def reserve_ports(
        self, key: str, address: str, count: int, wanted: Sequence[int] = ()
    ) -> tuple[tuple[int, ...], str]:
        """Free ports for a program that is about to start, and the name of the interface with the address."""
        found = await self._ask("reserve_ports", key=key, address=address, count=count, wanted=list(wanted))
        return tuple(found["ports"]), str(found["interface"])

    async def stop(self, key: str, grace_s: float, notice: dict[str, Any] | None = None) -> None:
        """TERM, then KILL after the grace, to the whole tree; returns at once."""
        await self._ask("stop", key=key, grace_s=grace_s, notice=notice)

    async def notify(self, key: str, notice: dict[str, Any] | None) -> None:
        """Put a notice before a program, or take it away."""
        await self._ask("notify", key=key, notice=notice)

    async def signal(self, key: str, signum: int) -> None:
        """Send a signal to the program's foreground process group."""
        await self._ask("signal", key=key, signum=signum)

    async def forget(self, key: str, *, delete_logs: bool = False) -> None:
        """The end has been written to the store: the agent need not report it again."""
        await self._ask("forget", key=key, delete_logs=delete_logs)

    async def read_log(self, key: str, cursor: str, limit: int) -> Sequence[Stretch]:
        """Output from ``cursor``; empty when there is no more now."""
        rows, data = await self._ask("read_records", key=key, cursor=cursor, limit=limit)
        ends = itertools.accumulate(int(length) for _segment, _after, length in rows)
        return [
            Stretch(int(segment), int(after), data[end - int(length) : end])
            for (segment, after, length), end in zip(rows, ends, strict=True)
        ]

    async def tail_log(self, key: str, lines: int) -> str:
        """The cursor from which about ``lines`` lines follow."""
        return str(await self._ask("tail_log", key=key, lines=lines))

    async def attach(self, key: str) -> LocalStream:
        """A stream to the program's shepherd, on a connection of its own."""
        return await self._stream("attach", key=key)

    async def connect_port(self, key: str, port: int) -> LocalStream:
        """A stream to a port on which a process of the program listens."""
        return await self._stream("connect_port", key=key, port=port)

    async def images(self, what: str, **params: Any) -> Any:
        """Container images: see ``services.ports.NodeLink``."""
        return await self._ask("images", what=what, **params)

    async def files(self) -> LocalFiles:
        """A conversation about files, on a connection of its own."""
        stack = contextlib.AsyncExitStack()
        try:
            reader, writer = await stack.enter_async_context(connection(self._socket))
        except OSError as error:
            raise unreachable(self.name) from error
        return LocalFiles(self.name, reader, writer, stack)

    async def _stream(self, method: str, **params: Any) -> LocalStream:
        """A connection that becomes a raw stream once the agent has agreed."""
        stack = contextlib.AsyncExitStack()
        try:
            reader, writer = await stack.enter_async_context(connection(self._socket))
            request = {"id": 0, "method": method, "params": params}
            writer.write(json.dumps(request).encode() + b"\n")
            line = await asyncio.wait_for(reader.readline(), ANSWER_WAIT_S)
            answer = json.loads(line)
        except (OSError, TimeoutError, ValueError) as error:
            await stack.aclose()
            raise unreachable(self.name) from error
        if "error" in answer:
            await stack.aclose()
            raise GpupoolError.from_dict(answer["error"])
        return LocalStream(reader, writer, stack)


def _settle(future: asyncio.Future[Any], message: dict[str, Any]) -> None:
    if "error" in message:
        future.set_exception(GpupoolError.from_dict(message["error"]))
    else:
        result = message.get("result")
        future.set_result((result, message["bytes"]) if "bytes" in message else result)
