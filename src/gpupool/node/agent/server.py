"""The agent's socket: one JSON object per line, for the control plane only; answers may come in any order.

A request is ``{"id": 1, "method": "start", "params": {...}, "term": 7}``. ``term`` is that of the leader; it is absent
where no other control plane can lead. The answer is ``{"id": 1, "result": ...}`` or ``{"id": 1, "error": {"code",
"message", "hint"}}``. If an answer has ``raw``, that many bytes follow its line. After ``watch``, lines ``{"event":
"status", "status": {...}}`` are sent for changes. After the answer to ``attach``, the connection is the raw stream to
the program's shepherd. After the answer to ``connect_port``, it is the raw stream to the port, or frames if request and
answer have ``"half_close": true`` (see ``domain.protocol.frames``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.protocol import frames
from gpupool.domain.protocol.fencing import is_deposed
from gpupool.domain.protocol.node_json import gpu_to_dict, report_to_dict
from gpupool.domain.work.program.supervision import ProcessSpec, ProcessStatus
from gpupool.node.agent.agent import Agent
from gpupool.node.files.homes import NAMES as HOME_METHODS
from gpupool.node.files.homes import HomeMethods
from gpupool.node.files.reading import NAMES as FILE_METHODS
from gpupool.node.files.reading import FileMethods
from gpupool.node.host.heartbeat import Pings, boottime
from gpupool.node.host.log import log_event
from gpupool.node.shepherd.attach import peer_uid
from gpupool.services.socket_stream import SocketStream
from gpupool.unix_sockets import BACKLOG, ShortPath, listen

LINE_LIMIT = 8 << 20  # bytes
MAX_UNSENT_BYTES = 16 << 20  # a slower client is disconnected, and compares everything when it reconnects
MAX_CONCURRENT_REQUESTS = 256  # per connection
_NOTE = bytes([frames.NOTE])
_PIECE = 256 << 10

Params = dict[str, Any]
Method = Callable[[Params], Awaitable[Any]]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Raw:
    """A JSON value, followed by raw bytes."""

    result: Any
    data: tuple[bytes, ...]


class Methods:
    """The methods by name. Each takes JSON values and returns JSON values, or ``Raw``."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._pings = Pings(agent.contact, boottime)
        self._files = FileMethods(agent.job_folders)
        self._homes = HomeMethods(agent.homes)

    def find(self, name: str) -> Method:
        """Return a method. Raises ``GpupoolError(UNSUPPORTED)`` if it does not exist."""
        method: Method | None = getattr(self, f"do_{name}", None)
        if name in FILE_METHODS:
            method = getattr(self._files, name)
        if name in HOME_METHODS:
            method = getattr(self._homes, name)
        if method is None:
            raise GpupoolError(ErrorCode.UNSUPPORTED, f"The agent has no method '{name[:40]}'.", "Update the node.")
        return method

    async def do_ping(self, params: Params) -> Any:
        """Record a ping; return the time of the node.

        ``number`` counts on this connection; ``answered`` is the last one answered (0: none).
        A control plane that cannot prove at present that it leads sends no ``answered``.
        """
        self._pings.take(int(params["number"]), int(params["answered"]))
        return {"time": time.time()}

    async def do_report(self, _params: Params) -> Any:
        """Return the machine."""
        return report_to_dict(await self._agent.report())

    async def do_gpus(self, _params: Params) -> Any:
        """Return the GPUs with current state."""
        return [gpu_to_dict(gpu) for gpu in await self._agent.gpus()]

    async def do_create_mig_instance(self, params: Params) -> Any:
        """Create a MIG instance: ``card``, ``profile`` -> the machine."""
        await self._agent.create_mig_instance(str(params["card"]), str(params["profile"]))
        return report_to_dict(await self._agent.report())

    async def do_remove_mig_instance(self, params: Params) -> Any:
        """Destroy a MIG instance that the pool created: ``uuid`` -> the machine."""
        await self._agent.remove_mig_instance(str(params["uuid"]))
        return report_to_dict(await self._agent.report())

    async def do_reserve_ports(self, params: Params) -> Any:
        """Reserve ports: ``key``, ``address``, ``count``, ``wanted`` (ports) -> ``ports`` and ``interface``."""
        asked = (str(params["key"]), str(params["address"]), int(params["count"]), tuple(params.get("wanted", ())))
        ports, interface = await self._agent.reserve_ports(*asked)
        return {"ports": ports, "interface": interface}

    async def do_listening_ports(self, params: Params) -> Any:
        """Return the ports on which a program listens: ``key`` -> the JSON of ``ListeningPort.to_list``."""
        return [port.to_list() for port in await self._agent.listening_ports(str(params["key"]))]

    async def do_check_command(self, params: Params) -> Any:
        """Execute a command where a program runs: ``key``, ``argv``, ``timeout_s`` -> its problem, or empty."""
        words = [str(word) for word in params["argv"]]
        return await self._agent.check_command(str(params["key"]), words, float(params["timeout_s"]))

    async def do_samples(self, params: Params) -> Any:
        """Return samples after a number: ``after`` -> the JSON of ``domain.protocol.node_json.sample_to_list``."""
        return self._agent.sampler.ring.after(int(params["after"]))

    async def do_list(self, _params: Params) -> Any:
        """Return all statuses."""
        return [status.to_dict() for status in self._agent.statuses()]

    async def do_spec(self, params: Params) -> Any:
        """Return a spec: ``key`` -> spec."""
        return self._agent.spec(params["key"]).to_dict()

    async def do_start(self, params: Params) -> Any:
        """Start a program: ``spec`` -> status."""
        return (await self._agent.start(decode(ProcessSpec, params["spec"]))).to_dict()

    async def do_attach_gpus(self, params: Params) -> Any:
        """Give GPUs to a lazy program: ``key``, ``epoch``, ``shares``."""
        shares = tuple(decode(GpuShare, share) for share in params["shares"])
        await self._agent.attach_gpus(params["key"], int(params["epoch"]), shares)

    async def do_suspend(self, params: Params) -> Any:
        """Suspend a program, to take its GPUs: ``key``, ``epoch``, ``grace_s``."""
        self._agent.suspend(params["key"], int(params["epoch"]), max(0.0, float(params["grace_s"])))

    async def do_stop(self, params: Params) -> Any:
        """Stop a program: ``key``, ``grace_s``, ``notice``."""
        self._agent.stop(params["key"], float(params["grace_s"]), params.get("notice"))

    async def do_end(self, params: Params) -> Any:
        """Stop a program on a user's request while the database is not available: ``key``, ``grace_s``."""
        self._agent.stop(params["key"], float(params["grace_s"]))

    async def do_notify(self, params: Params) -> Any:
        """Write a notice: ``key``, ``notice``."""
        self._agent.notify(params["key"], params.get("notice"))

    async def do_signal(self, params: Params) -> Any:
        """Send a signal: ``key``, ``signum``."""
        await self._agent.signal(params["key"], int(params["signum"]))

    async def do_forget(self, params: Params) -> Any:
        """Forget an ended program: ``key``, ``delete_logs``."""
        await self._agent.forget(params["key"], delete_logs=bool(params.get("delete_logs")))

    async def do_images(self, params: Params) -> Any:
        """Manage images: ``what`` and its parameters; see ``ImageStore.answer``."""
        return await self._agent.backends.images.answer(params)

    async def do_read_records(self, params: Params) -> Any:
        """Read a log: ``key``, ``cursor``, ``limit`` -> [segment, after, length], ... and the log records."""
        found = await self._agent.read_log(params["key"], params.get("cursor", ""), int(params["limit"]))
        return Raw([[part.segment, part.after, len(part.data)] for part in found], tuple(part.data for part in found))

    async def do_tail_log(self, params: Params) -> Any:
        """Return the cursor before the last lines: ``key``, ``lines`` -> cursor."""
        return await self._agent.tail_log(params["key"], int(params["lines"]))


class ActiveWatcher:
    """The connection of the control plane: the newest one that watches.

    A control plane that reconnects compares what runs here. A command that was sent before and is still on its way must
    not be executed after that comparison. Therefore the older connection is closed first.
    """

    def __init__(self) -> None:
        self._newest: AgentConnection | None = None
        self._term: int | None = None

    def take(self, connection: AgentConnection, term: int | None) -> None:
        """Close the older connection, unless this one may come from a replaced control plane."""
        if (term is None and self._term is not None) or is_deposed(term, self._term or 0):
            return
        if self._newest is not None and self._newest is not connection:
            self._newest.end()
        self._newest, self._term = connection, term

    def leave(self, connection: AgentConnection) -> None:
        """Forget a closed connection."""
        if self._newest is connection:
            self._newest = self._term = None


class AgentConnection:
    """A connection of a control plane or a tool."""

    def __init__(self, agent: Agent, watching: ActiveWatcher, ends: Ends) -> None:
        self._agent = agent
        self._watching = watching
        self._task: asyncio.Task[None] | None = None
        self._methods = Methods(agent)
        self._reader, self._writer = ends
        self._room = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] | None = None
        self._bulk = asyncio.Lock()

    async def serve(self) -> None:
        """Answer requests until the other side disconnects or sends an invalid request."""
        self._task = asyncio.current_task()
        try:
            while line := await self._reader.readline():
                request = json.loads(line)
                if request.get("method") in {"attach", "connect_port"}:
                    if await self._attach(request):
                        return
                    continue
                await self._room.acquire()
                task = asyncio.create_task(self._answer(request))
                self._tasks.add(task)
                task.add_done_callback(self._done)
        except (ValueError, AttributeError, OSError) as error:
            log_event("connection dropped", error=repr(error)[:200])
        finally:
            self._close()

    def end(self) -> None:
        """Take no more requests, and close the connection."""
        if self._task is not None:
            self._task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()

    def _close(self) -> None:
        self._watching.leave(self)
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._writer.close()

    async def _answer(self, request: Params) -> None:
        answer: Params = {"id": request.get("id")}
        method, term = str(request.get("method")), request.get("term")
        try:
            self._agent.terms.check(method, None if term is None else int(term))
            if method == "watch":
                self._watching.take(self, term)
                self._watch()
                answer["result"] = {"time": time.time()}
            else:
                answer["result"] = await self._methods.find(method)(request.get("params") or {})
        except GpupoolError as error:
            answer["error"] = error.to_dict()
        except (KeyError, TypeError, ValueError) as error:
            answer["error"] = GpupoolError(ErrorCode.INVALID_REQUEST, f"Not understood: {error!r}").to_dict()
        except Exception as error:  # noqa: BLE001 - one request must not end the agent
            log_event("request failed", method=method, error=repr(error))
            answer["error"] = GpupoolError(ErrorCode.INTERNAL, f"The agent failed: {error!r}").to_dict()
        if isinstance(raw := answer.get("result"), Raw):
            await self._write_raw(answer, raw)
        else:
            self._write(answer)

    async def _write_raw(self, answer: Params, raw: Raw) -> None:
        """Write bulk data one at a time after the buffer has drained, so that short answers need not wait."""
        async with self._bulk:
            with contextlib.suppress(OSError):
                await self._writer.drain()
            self._write(answer | {"result": raw.result, "raw": sum(map(len, raw.data))}, raw.data)

    def _write(self, message: Params, raw: tuple[bytes, ...] = ()) -> None:
        if self._writer.is_closing():
            return
        self._writer.write(b"".join((json.dumps(message, separators=(",", ":")).encode(), b"\n", *raw)))
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._writer.transport.abort()

    def _watch(self) -> None:
        if self._unsubscribe is None:
            self._unsubscribe = self._agent.subscribe(self._on_status)

    def _on_status(self, status: ProcessStatus) -> None:
        self._write({"event": "status", "status": status.to_dict()})

    async def _attach(self, request: Params) -> bool:
        """Connect the caller to the program; return False if there was nothing to attach to."""
        answer: Params = {"id": request.get("id"), "result": None}
        params = request.get("params") or {}
        key = str(params.get("key"))
        try:
            if request["method"] == "attach":
                far = SocketStream(await self._shepherd(key))
            else:
                port = params["port"]
                far = SocketStream(await self._agent.connect_port(key, port if isinstance(port, str) else int(port)))
        except (GpupoolError, OSError) as error:
            gone = GpupoolError(ErrorCode.WRONG_STATE, "The program has ended.", "Its output is in the log.")
            added_notes = error if isinstance(error, GpupoolError) else gone
            self._write({"id": request.get("id"), "error": added_notes.to_dict()})
            return False
        half_close = request["method"] == "connect_port" and bool(params.get("half_close"))
        if half_close:
            answer["result"] = {"half_close": True}
        self._write(answer)
        counted = params.get("activity", True)
        on_data = (lambda: self._agent.carried(key)) if counted else (lambda: None)
        with self._agent.client(key, port=request["method"] == "connect_port" and counted):
            join = _join_port if half_close else _join
            with contextlib.closing(far):
                near = await SocketStream.take_over(self._reader, self._writer)
                with contextlib.closing(near):
                    await join(near, far, on_data)
        return True

    async def _shepherd(self, key: str) -> socket.socket:
        """Connect to the shepherd of a program. Raises OSError."""
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(0)
        try:
            with ShortPath(self._agent.attach_path(key)) as name:
                await asyncio.get_running_loop().sock_connect(connected, name)
        except BaseException:
            connected.close()
            raise
        return connected


def _bind_datagrams(path: Path) -> socket.socket:
    """Return a datagram socket at ``path`` that never blocks; it replaces an old one. Raises ``OSError``."""
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.settimeout(0)
        with ShortPath(path) as name:
            sock.bind(name)
        path.chmod(0o600)
    except OSError:
        sock.close()
        raise
    return sock


async def _join(near: SocketStream, far: SocketStream, on_data: Callable[[], None]) -> None:
    """Copy bytes both ways until one side has ended; all data read from it is still delivered."""
    await _until_first(_carry(near, far, on_data), _carry(far, near, on_data))


async def _join_port(near: SocketStream, far: SocketStream, on_data: Callable[[], None]) -> None:
    """Copy between frames and a port until both directions have ended, or the control plane disconnects."""
    input_ended = asyncio.Event()
    await _until_first(_to_port(near, far, on_data, input_ended), _from_port(far, near, on_data, input_ended))


async def _until_first(*directions: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.create_task(direction) for direction in directions]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


async def _to_port(near: SocketStream, far: SocketStream, on_data: Callable[[], None], ended: asyncio.Event) -> None:
    """Write the payload of frames to a port; return when the control plane disconnects.

    What the port has sent is still delivered if it does not accept more. Raises ValueError for an invalid frame.
    """
    buffer = bytearray()
    while data := await near.read(_PIECE):
        buffer += data
        for kind, payload in frames.decode(buffer):
            if ended.is_set():
                continue
            on_data()
            if kind == frames.STDIN_EOF:
                ended.set()
                far.end_writing()
            elif not await _write(far, payload):
                ended.set()


async def _from_port(
    far: SocketStream, near: SocketStream, on_data: Callable[[], None], input_ended: asyncio.Event
) -> None:
    while data := await far.read(_PIECE):
        on_data()
        await _write(near, frames.encode(frames.STDOUT, data))
    await _write(near, frames.encode(frames.STDOUT_EOF))
    await input_ended.wait()


async def _carry(source: SocketStream, to: SocketStream, on_data: Callable[[], None]) -> None:
    """Copy until the source has ended. If the other side reads no more, it ends soon; its last data is still read."""
    while data := await source.read(_PIECE):
        if not _is_note(data):
            on_data()
        await _write(to, data)


async def _write(to: SocketStream, data: bytes) -> bool:
    """Write data; return False if the other side does not read it."""
    try:
        await to.write(data)
    except OSError:
        return False
    return True


def _is_note(data: bytes) -> bool:
    """Return True for nothing but a line of the pool for the user, which is no activity of the program."""
    return (
        data[:1] == _NOTE
        and len(data) >= frames.HEADER.size
        and len(data) == frames.HEADER.size + frames.HEADER.unpack_from(data)[1]
    )


class AgentServer:
    """Listens for the control plane and for the hints of shepherds."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._server: asyncio.Server | None = None
        self._hints: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._watching = ActiveWatcher()

    async def open(self) -> None:
        """Bind both sockets and start to serve. Raises OSError."""
        run = self._agent.run
        self._hints = _bind_datagrams(run.notify)
        asyncio.get_running_loop().add_reader(self._hints.fileno(), self._on_hint)
        listener = listen(run.agent)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=LINE_LIMIT, backlog=BACKLOG)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        if peer_uid(writer.get_extra_info("socket")) not in {0, os.geteuid()}:
            writer.close()
            return
        with contextlib.suppress(asyncio.CancelledError):
            await AgentConnection(self._agent, self._watching, (reader, writer)).serve()

    def _on_hint(self) -> None:
        """Examine the replicas named in hints; their files have the changes."""
        hints = self._hints
        with contextlib.suppress(OSError):
            while hints is not None:
                entry = self._agent.entries.get(hints.recv(256).decode("ascii", "replace"))
                if entry is not None:
                    self._agent.supervisor.examine(entry)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._hints is not None:
            asyncio.get_running_loop().remove_reader(self._hints.fileno())
            self._hints.close()
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
