"""Requests to an agent: JSON lines over its socket, many at once on one connection.

If the line of an answer has ``raw``, that many bytes follow it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import Gpu, GpuShare, NodeReport
from gpupool.domain.nodes.telemetry import NodeSample
from gpupool.domain.protocol import frames
from gpupool.domain.protocol.fencing import COMMANDS, END, PING, HeartbeatCounter, Leadership
from gpupool.domain.protocol.log_records import LogBatch
from gpupool.domain.protocol.node_json import sample_from_list
from gpupool.domain.work.program.file_tree import FilesSpec
from gpupool.domain.work.program.supervision import ListeningPort, ProcessSpec, ProcessStatus
from gpupool.domain.work.workspace import WorkspaceTask
from gpupool.fabric.local.node_clock import NodeClock
from gpupool.services.clock import Clock
from gpupool.services.ports.files import Found, Making
from gpupool.services.socket_stream import SocketStream
from gpupool.unix_sockets import ShortPath

LINE_LIMIT = 16 << 20  # bytes; a list of ten thousand statuses is about four MiB
ANSWER_TIMEOUT_S = 60.0
PING_EVERY_S = 2.0
SILENT_S = 10.0  # without any answer: the agent or the connection is frozen or cut

OnStatus = Callable[[ProcessStatus], None]


def unreachable(node: str, why: str = "does not answer") -> GpupoolError:
    """Return the error for an unreachable node."""
    return GpupoolError(ErrorCode.NODE_UNREACHABLE, f"Node {node} {why}.", "See `gpupool status` and the node's log.")


@contextlib.asynccontextmanager
async def connection(socket: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a stream to a unix socket with a path of any length; close it at the end. Raises OSError."""
    with ShortPath(socket) as name:
        reader, writer = await asyncio.open_unix_connection(name, limit=LINE_LIMIT)
    try:
        yield reader, writer
    finally:
        writer.close()


class LocalStream:
    """A raw stream to a program's shepherd, through the agent; see ``domain.protocol.frames`` for its format."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream

    async def read(self, limit: int) -> bytes:
        """Read up to ``limit`` bytes; empty at the end, and if the node is gone."""
        return await self._stream.read(limit)

    async def write(self, data: bytes) -> None:
        """Write all data, waiting for a slow receiver. Raises NODE_UNREACHABLE if it is gone."""
        try:
            await self._stream.write(data)
        except OSError as error:
            raise unreachable("agent", "closed the connection") from error

    async def close(self) -> None:
        """Close the connection."""
        self._stream.close()


class PortStream:
    """A connection to a port, through the agent, as ``domain.protocol.frames``."""

    def __init__(self, stream: LocalStream) -> None:
        self._stream = stream
        self._frames = bytearray()
        self._received: deque[bytes] = deque()

    async def read(self, limit: int) -> bytes:
        """Read up to about ``limit`` bytes; empty once when the port has ended its side, then when all is closed."""
        while not self._received:
            data = await self._stream.read(limit)
            if not data:
                return b""
            self._frames += data
            for kind, payload in frames.decode(self._frames):
                if payload or kind == frames.STDOUT_EOF:
                    self._received.append(payload)
        return self._received.popleft()

    async def write(self, data: bytes) -> None:
        """Write all data; empty data ends this direction. Raises NODE_UNREACHABLE if the agent is gone."""
        if not data:
            await self._stream.write(frames.encode(frames.STDIN_EOF))
        for at in range(0, len(data), frames.MAX_PAYLOAD_BYTES):
            await self._stream.write(frames.encode(frames.STDIN, data[at : at + frames.MAX_PAYLOAD_BYTES]))

    async def close(self) -> None:
        """Close the connection."""
        await self._stream.close()


class LocalLink:
    """``services.ports.fabric.NodeLink`` over one connection, which its fabric opens again when it is lost.

    Times that the agent reports are converted to those of the pool's ``clock``.
    """

    def __init__(self, name: str, socket: Path, lead: Leadership, clock: Clock) -> None:
        self.name = name
        self.socket = socket
        self._lead = lead
        self._node_clock = NodeClock(clock)
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count(1)
        self._heard = False
        self._pulse = HeartbeatCounter()  # of this connection

    # -- the connection, driven by the fabric ------------------------------------------------------------------------

    async def converse(self, on_up: Callable[[], None], on_status: OnStatus) -> None:
        """Connect, watch, and handle messages until the agent disconnects or is silent. Raises OSError."""
        async with connection(self.socket) as (reader, writer):
            watched_at = self._node_clock.now()
            writer.write(request(0, "watch", self._lead, {}))
            self._writer = writer
            pulse = asyncio.create_task(self._keep_pulse(writer), name=f"pulse {self.name}")
            try:
                while line := await reader.readline():
                    self._heard = True
                    message = json.loads(line)
                    if "raw" in message:
                        message["bytes"] = await self._raw(reader, int(message["raw"]))
                    if message.get("id") == 0:
                        self._compare_clocks(watched_at, message.get("result"))
                        on_up()
                    else:
                        self._on_message(message, on_status)
            finally:
                pulse.cancel()
                self._writer = None
                self._fail_all()

    async def _raw(self, reader: asyncio.StreamReader, size: int) -> bytes:
        """Read the bytes after the line of an answer; each part counts as a sign of life. Raises OSError."""
        if not 0 <= size <= LINE_LIMIT:
            raise ConnectionAbortedError(f"an answer of {size} bytes")
        parts = []
        while size > 0:
            part = await reader.read(size)
            if not part:
                raise ConnectionResetError("the agent closed the connection during a response")
            self._heard = True
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    async def _keep_pulse(self, writer: asyncio.StreamWriter) -> None:
        """Ping every two seconds, and disconnect from an agent that does not answer.

        Each ping names the last one that was answered. Contact counts for the agent only when both sides know of it, so
        its last contact is never later than this side's (see ``node/host/heartbeat.py``). While this control plane
        cannot prove that it leads, its pings name no answer and do not count.
        """
        self._pulse, misses = HeartbeatCounter(), 0
        while misses * PING_EVERY_S < SILENT_S:  # counted, not timed: a stall of this process must not count as silence
            self._heard = False
            self._ping(writer)
            await asyncio.sleep(PING_EVERY_S)
            misses = 0 if self._heard else misses + 1
        writer.transport.abort()

    def _ping(self, writer: asyncio.StreamWriter) -> None:
        number, answered = self._pulse.ping(leads=self._lead.held())
        self._expect(-number).add_done_callback(partial(self._on_pong, writer, number, self._node_clock.now()))
        writer.write(request(-number, PING, self._lead, {"number": number, "answered": answered}))

    def _on_pong(self, writer: asyncio.StreamWriter, number: int, asked_at: float, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        self._compare_clocks(asked_at, answer.result())
        if self._pulse.pong(number):  # at once, so that the agent knows of the contact before a program is started
            self._ping(writer)

    def _compare_clocks(self, asked_at: float, answer: Any) -> None:
        if isinstance(answer, dict) and "time" in answer:  # agents before 0.1 send none
            self._node_clock.compare(asked_at, float(answer["time"]))

    def _status(self, value: Any) -> ProcessStatus:
        return decode(ProcessStatus, value).moved_by(-self._node_clock.ahead_s)

    def _expect(self, number: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        return future

    def _on_message(self, message: dict[str, Any], on_status: OnStatus) -> None:
        if message.get("event") == "status":
            on_status(self._status(message["status"]))
        elif (future := self._waiting.pop(message.get("id", 0), None)) is not None and not future.done():
            _settle(future, message)

    def _fail_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(unreachable(self.name, "closed the connection"))

    async def _ask(self, method: str, **params: Any) -> Any:
        if self._writer is None:
            raise unreachable(self.name, "is not connected")
        check_lead(method, self._lead)
        number = next(self._ids)
        future = self._expect(number)
        try:
            self._writer.write(request(number, method, self._lead, params))
            await self._writer.drain()
            async with asyncio.timeout(
                ANSWER_TIMEOUT_S
            ):  # not wait_for: in Python 3.11 an answer can hide a cancellation
                return await future
        except (OSError, TimeoutError) as error:
            raise unreachable(self.name) from error
        finally:
            self._waiting.pop(number, None)

    # -- requests ----------------------------------------------------------------------------------------------------

    async def report(self) -> NodeReport:
        """Return the current state of the machine and its GPUs."""
        return decode(NodeReport, await self._ask("report"))

    async def gpus(self) -> Sequence[Gpu]:
        """Return the GPUs with current health, foreign processes and use."""
        return [decode(Gpu, gpu) for gpu in await self._ask("gpus")]

    async def create_mig_instance(self, card: str, profile: str) -> NodeReport:
        """Create a MIG instance on a card."""
        return decode(NodeReport, await self._ask("create_mig_instance", card=card, profile=profile))

    async def remove_mig_instance(self, uuid: str) -> NodeReport:
        """Destroy a MIG instance that the pool created."""
        return decode(NodeReport, await self._ask("remove_mig_instance", uuid=uuid))

    async def samples(self, after: int) -> Sequence[NodeSample]:
        """Return the samples of the node after one by its number, oldest first."""
        texts = await self._ask("samples", after=after)
        samples = [sample_from_list(self.name, json.loads(text)) for text in texts]
        return [replace(sample, at=sample.at - self._node_clock.ahead_s) for sample in samples]

    async def list(self) -> Sequence[ProcessStatus]:
        """Return all programs of the agent."""
        return [self._status(status) for status in await self._ask("list")]

    async def spec(self, key: str) -> ProcessSpec:
        """Return the spec with which a program was started."""
        return decode(ProcessSpec, await self._ask("spec", key=key))

    async def start(self, spec: ProcessSpec) -> ProcessStatus:
        """Start a program, or return its status if this key was started before."""
        return self._status(await self._ask("start", spec=spec.to_dict()))

    async def attach_gpus(self, key: str, epoch: int, shares: Sequence[GpuShare]) -> None:
        """Give GPUs to a lazy program that waits for them."""
        await self._ask("attach_gpus", key=key, epoch=epoch, shares=[asdict(share) for share in shares])

    async def suspend(self, key: str, epoch: int, grace_s: float) -> None:
        """Suspend a program, to take its GPUs."""
        await self._ask("suspend", key=key, epoch=epoch, grace_s=grace_s)

    async def reserve_ports(
        self, key: str, address: str, count: int, wanted: Sequence[int] = ()
    ) -> tuple[tuple[int, ...], str]:
        """Reserve free ports for a program; return them and the interface with the address."""
        found = await self._ask("reserve_ports", key=key, address=address, count=count, wanted=list(wanted))
        return tuple(found["ports"]), str(found["interface"])

    async def stop(self, key: str, grace_s: float, notice: dict[str, Any] | None = None) -> None:
        """Stop the whole tree: TERM, then KILL after the grace period. Returns at once."""
        await self._ask("stop", key=key, grace_s=grace_s, notice=notice)

    async def end(self, key: str, grace_s: float) -> None:
        """Stop a program for a user while the database cannot confirm the lead."""
        await self._ask(END, key=key, grace_s=grace_s)

    async def notify(self, key: str, notice: dict[str, Any] | None) -> None:
        """Write a notice for a program, or withdraw it."""
        await self._ask("notify", key=key, notice=notice)

    async def signal(self, key: str, signum: int) -> None:
        """Send a signal to the program's foreground process group."""
        await self._ask("signal", key=key, signum=signum)

    async def forget(self, key: str, *, delete_logs: bool = False) -> None:
        """Tell the agent that the end is stored, so that it need not report it again."""
        await self._ask("forget", key=key, delete_logs=delete_logs)

    async def read_log(self, key: str, cursor: str, limit: int) -> Sequence[LogBatch]:
        """Return output from ``cursor``; empty when there is no more now."""
        rows, data = await self._ask("read_records", key=key, cursor=cursor, limit=limit)
        ends = itertools.accumulate(int(length) for _segment, _after, length in rows)
        return [
            LogBatch(int(segment), int(after), data[end - int(length) : end])
            for (segment, after, length), end in zip(rows, ends, strict=True)
        ]

    async def tail_log(self, key: str, lines: int) -> str:
        """Return the cursor before about ``lines`` last lines."""
        return str(await self._ask("tail_log", key=key, lines=lines))

    async def attach(self, key: str) -> LocalStream:
        """Open a stream to the program's shepherd, on a separate connection."""
        return (await self._stream("attach", key=key))[0]

    async def connect_port(self, key: str, port: int | str, *, activity: bool) -> LocalStream | PortStream:
        """Open a stream to a port, or the path of a Unix socket, on which a process of the program listens."""
        params = {"key": key, "port": port, "activity": activity, "half_close": True}
        stream, result = await self._stream("connect_port", **params)
        return PortStream(stream) if result and result.get("half_close") else stream  # an older agent sends plain bytes

    async def listening_ports(self, key: str) -> Sequence[ListeningPort]:
        """Return the ports on which processes of the program listen."""
        return [ListeningPort.from_list(values) for values in await self._ask("listening_ports", key=key)]

    async def check_command(self, key: str, argv: Sequence[str], timeout_s: float) -> str:
        """Execute a command where a program runs; return its problem, empty if there is none."""
        return str(await self._ask("check_command", key=key, argv=tuple(argv), timeout_s=timeout_s))

    async def images(self, what: str, **params: Any) -> Any:
        """Manage container images: see ``services.ports.fabric.NodeLink``."""
        return await self._ask("images", what=what, **params)

    async def files(self) -> LocalFiles:
        """Open a separate connection for file requests."""
        stack = contextlib.AsyncExitStack()
        try:
            reader, writer = await stack.enter_async_context(connection(self.socket))
        except OSError as error:
            raise unreachable(self.name) from error
        return LocalFiles(self.name, reader, writer, stack, self._lead)

    async def _stream(self, method: str, **params: Any) -> tuple[LocalStream, Any]:
        """Open a connection that becomes a raw stream once the agent has agreed; return it and the result."""
        try:
            async with connection(self.socket) as (reader, writer):
                writer.write(request(0, method, self._lead, params))
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    answer = json.loads(await reader.readline())
                if "error" in answer:
                    raise GpupoolError.from_dict(answer["error"])
                return LocalStream(await SocketStream.take_over(reader, writer)), answer.get("result")
        except (OSError, ValueError) as error:
            raise unreachable(self.name) from error


def _settle(future: asyncio.Future[Any], message: dict[str, Any]) -> None:
    if "error" in message:
        future.set_exception(GpupoolError.from_dict(message["error"]))
    else:
        result = message.get("result")
        future.set_result((result, message["bytes"]) if "bytes" in message else result)


class LocalFiles:
    """``services.ports.files.FilesLink`` over a stream to the agent's socket."""

    def __init__(
        self,
        node: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        stack: contextlib.AsyncExitStack,
        lead: Leadership,
    ) -> None:
        self._node = node
        self._reader = reader
        self._writer = writer
        self._stack = stack
        self._lead = lead

    async def _ask(self, method: str, **params: Any) -> Any:
        check_lead(method, self._lead)
        try:
            self._writer.write(request(1, method, self._lead, params))
            await self._writer.drain()
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                line = await self._reader.readline()
            answer = json.loads(line)
        except (OSError, TimeoutError, ValueError) as error:
            raise GpupoolError(
                ErrorCode.NODE_UNREACHABLE, f"Node {self._node} closed the connection for files.", "See the node's log."
            ) from error
        if "error" in answer:
            raise GpupoolError.from_dict(answer["error"])
        return answer.get("result")

    async def blob_missing(self, space: str, blobs: Sequence[tuple[str, int]]) -> list[int]:
        """Return how many bytes of each blob the node has."""
        return [int(size) for size in await self._ask("blob_missing", space=space, blobs=list(blobs))]

    async def blob_put(self, space: str, pieces: Sequence[tuple[str, int, int, bytes]]) -> list[int]:
        """Send pieces (digest, size, offset, bytes)."""
        rows = [[sha256, size, offset, base64.b64encode(data).decode()] for sha256, size, offset, data in pieces]
        return [int(size) for size in await self._ask("blob_put", space=space, pieces=rows)]

    async def tree_make(self, files: FilesSpec, uid: int | None, env: dict[str, str]) -> Making:
        """Create a job folder."""
        return Making(await self._ask("tree_make", files=asdict(files), uid=uid, env=env))

    async def tree_list(self, workload: str, path: str, uid: int | None, after: str) -> list[Found]:
        """List a job folder below ``path``."""
        rows = await self._ask("tree_list", workload=workload, path=path, uid=uid, after=after)
        return [Found(*row) for row in rows]

    async def tree_read(self, workload: str, path: str, uid: int | None, offset: int, limit: int) -> bytes:
        """Read bytes of a file."""
        asked = {"workload": workload, "path": path, "uid": uid, "offset": offset, "limit": limit}
        return base64.b64decode(await self._ask("tree_read", **asked))

    async def home_task(self, task: WorkspaceTask, workspace: str, uid: int | None) -> int | None:
        """Change a home; return the bytes used, None while the change is in progress."""
        plain = {"id": task.id, "kind": task.kind.value, "source": task.source, "snapshot": task.snapshot}
        files = [[file.name, file.text] for file in task.files]
        used = await self._ask("home_task", **plain, workspace=workspace, uid=uid, files=files)
        return None if used is None else int(used)

    async def home_usage(self, workspace: str) -> int:
        """Return the bytes of disk that a workspace uses."""
        return int(await self._ask("home_usage", workspace=workspace))

    async def close(self) -> None:
        """Close the connection."""
        await self._stack.aclose()


def request(number: int, method: str, lead: Leadership, params: dict[str, Any]) -> bytes:
    """Return the line of a request."""
    message: dict[str, Any] = {"id": number, "method": method, "params": params}
    if lead.term is not None:
        message["term"] = lead.term
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def check_lead(method: str, lead: Leadership) -> None:
    """Raise ``GpupoolError(DATABASE_UNREACHABLE)`` for a command while another control plane may lead."""
    if method in COMMANDS and method != END and not lead.held():
        raise GpupoolError(
            ErrorCode.DATABASE_UNREACHABLE,
            f"'{method}' was not sent: the database has not recently confirmed that this control plane leads.",
            "Commands are sent again once the database answers or another control plane leads.",
        )
