"""The agent's socket: one JSON object per line, answered in any order, for the control plane only.

A request is ``{"id": 1, "method": "start", "params": {...}}``; its answer ``{"id": 1, "result": ...}`` or
``{"id": 1, "error": {"code", "message", "hint"}}``; where an answer has ``raw``, so many bytes follow its line. After
``watch`` lines ``{"event": "status", "status": {...}}`` come by themselves. After the answer to ``attach`` the
connection is the raw stream to the program's shepherd.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.supervision import ProcessSpec, ProcessStatus
from gpupool.domain.wire import gpu_to_dict, report_to_dict
from gpupool.node.agent import Agent
from gpupool.node.contact import Pings
from gpupool.node.files.methods import NAMES as FILE_METHODS
from gpupool.node.files.methods import FileMethods
from gpupool.node.journal import say
from gpupool.node.paths import bind_socket, socket_name
from gpupool.node.viewers import peer_uid

LINE_LIMIT = 8 << 20  # bytes
BEHIND_LIMIT = 16 << 20  # bytes: a watcher further behind is hung up on, and compares everything when it comes back
AT_ONCE = 256  # requests in work per connection
_PIECE = 256 << 10
_BACKLOG = 128

Params = dict[str, Any]
Method = Callable[[Params], Awaitable[Any]]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Raw:
    """A JSON value, and bytes that follow it as they are."""

    result: Any
    data: tuple[bytes, ...]


class Methods:
    """What can be asked, by name; each takes JSON values and gives JSON values, or ``Raw``."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._pings = Pings(agent.contact)
        self._files = FileMethods(agent.workspaces)

    def find(self, name: str) -> Method:
        """Raises ``GpupoolError(UNSUPPORTED)`` for a method there is not."""
        method: Method | None = getattr(self, f"do_{name}", None)
        if name in FILE_METHODS:
            method = getattr(self._files, name)
        if method is None:
            raise GpupoolError(ErrorCode.UNSUPPORTED, f"The agent has no method '{name[:40]}'.", "Update the node.")
        return method

    async def do_ping(self, params: Params) -> Any:
        """``number`` of this ping, counted on this connection; ``answered``: of the last one answered (0: none)."""
        self._pings.take(int(params["number"]), int(params["answered"]))

    async def do_report(self, _params: Params) -> Any:
        """The machine."""
        return report_to_dict(await self._agent.report())

    async def do_gpus(self, _params: Params) -> Any:
        """The GPUs, fresh."""
        return [gpu_to_dict(gpu) for gpu in await self._agent.gpus()]

    async def do_reserve_ports(self, params: Params) -> Any:
        """``key``, ``address``, ``count``, ``wanted`` (ports) -> ``ports`` and ``interface``."""
        asked = (str(params["key"]), str(params["address"]), int(params["count"]), tuple(params.get("wanted", ())))
        ports, interface = await self._agent.reserve_ports(*asked)
        return {"ports": ports, "interface": interface}

    async def do_samples(self, params: Params) -> Any:
        """``after``, a number of a look -> looks that follow, each the JSON of a ``domain.wire.look_to_list``."""
        return self._agent.sampler.ring.after(int(params["after"]))

    async def do_list(self, _params: Params) -> Any:
        """All statuses."""
        return [status.to_dict() for status in self._agent.statuses()]

    async def do_start(self, params: Params) -> Any:
        """``spec`` -> status."""
        return (await self._agent.start(ProcessSpec.from_dict(params["spec"]))).to_dict()

    async def do_stop(self, params: Params) -> Any:
        """``key``, ``grace_s``, ``notice``."""
        self._agent.stop(params["key"], float(params["grace_s"]), params.get("notice"))

    async def do_notify(self, params: Params) -> Any:
        """``key``, ``notice``."""
        self._agent.notify(params["key"], params.get("notice"))

    async def do_signal(self, params: Params) -> Any:
        """``key``, ``signum``."""
        await self._agent.signal(params["key"], int(params["signum"]))

    async def do_forget(self, params: Params) -> Any:
        """``key``, ``delete_logs``."""
        await self._agent.forget(params["key"], delete_logs=bool(params.get("delete_logs")))

    async def do_images(self, params: Params) -> Any:
        """``what`` and what it needs: see ``node.containers.service.Containers.answer``."""
        return await self._agent.containers.answer(params)

    async def do_read_records(self, params: Params) -> Any:
        """``key``, ``cursor``, ``limit`` -> [segment, after, length], ... and the bytes of ``domain.logrecords``."""
        found = await self._agent.read_log(params["key"], params.get("cursor", ""), int(params["limit"]))
        return Raw([[part.segment, part.after, len(part.data)] for part in found], tuple(part.data for part in found))

    async def do_tail_log(self, params: Params) -> Any:
        """``key``, ``lines`` -> cursor."""
        return await self._agent.tail_log(params["key"], int(params["lines"]))


class Connection:
    """One control plane (or tool) talking to the agent."""

    def __init__(self, agent: Agent, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._agent = agent
        self._methods = Methods(agent)
        self._reader = reader
        self._writer = writer
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] | None = None
        self._bulk = asyncio.Lock()

    async def serve(self) -> None:
        """Until the other side hangs up or sends what is not a request."""
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
            say("connection dropped", error=repr(error)[:200])
        finally:
            self._close()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()

    def _close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._writer.close()

    async def _answer(self, request: Params) -> None:
        answer: Params = {"id": request.get("id")}
        try:
            if request.get("method") == "watch":
                self._watch()
                answer["result"] = None
            else:
                answer["result"] = await self._methods.find(str(request.get("method")))(request.get("params") or {})
        except GpupoolError as error:
            answer["error"] = error.to_dict()
        except (KeyError, TypeError, ValueError) as error:
            answer["error"] = GpupoolError(ErrorCode.INVALID_REQUEST, f"Not understood: {error!r}").to_dict()
        except Exception as error:  # noqa: BLE001 - one request must not end the agent
            say("request failed", method=request.get("method"), error=repr(error))
            answer["error"] = GpupoolError(ErrorCode.INTERNAL, f"The agent failed: {error!r}").to_dict()
        if isinstance(raw := answer.get("result"), Raw):
            await self._write_raw(answer, raw)
        else:
            self._write(answer)

    async def _write_raw(self, answer: Params, raw: Raw) -> None:
        """One at a time, when what was written before is on its way: what is shorter need not wait behind many."""
        async with self._bulk:
            with contextlib.suppress(OSError):
                await self._writer.drain()
            self._write(answer | {"result": raw.result, "raw": sum(map(len, raw.data))}, raw.data)

    def _write(self, message: Params, raw: tuple[bytes, ...] = ()) -> None:
        if self._writer.is_closing():
            return
        self._writer.write(b"".join((json.dumps(message, separators=(",", ":")).encode(), b"\n", *raw)))
        if self._writer.transport.get_write_buffer_size() > BEHIND_LIMIT:
            self._writer.transport.abort()

    def _watch(self) -> None:
        if self._unsubscribe is None:
            self._unsubscribe = self._agent.subscribe(self._on_status)

    def _on_status(self, status: ProcessStatus) -> None:
        self._write({"event": "status", "status": status.to_dict()})

    async def _attach(self, request: Params) -> bool:
        """Become a pipe between the caller and the program; False when there was nothing to attach to."""
        answer: Params = {"id": request.get("id"), "result": None}
        params = request.get("params") or {}
        try:
            if request["method"] == "attach":
                far_reader, far_writer = await self._shepherd(str(params.get("key")))
            else:
                sock = await self._agent.connect_port(str(params.get("key")), int(params["port"]))
                far_reader, far_writer = await asyncio.open_connection(sock=sock)
        except (GpupoolError, OSError) as error:
            gone = GpupoolError(ErrorCode.WRONG_STATE, "The program has ended.", "Its output is in the log.")
            said = error if isinstance(error, GpupoolError) else gone
            self._write({"id": request.get("id"), "error": said.to_dict()})
            return False
        self._write(answer)
        await _join((self._reader, self._writer), (far_reader, far_writer))
        return True

    async def _shepherd(self, key: str) -> Ends:
        with socket_name(self._agent.attach_path(key)) as name:
            return await asyncio.open_unix_connection(name)


async def _join(near: Ends, far: Ends) -> None:
    """Carry bytes both ways until one side hangs up; what was read from it is still delivered."""
    there = asyncio.create_task(_carry(near[0], far[1]))
    back = asyncio.create_task(_carry(far[0], near[1]))
    await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
    for task, writer in ((there, far[1]), (back, near[1])):
        task.cancel()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await task
        writer.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()


class AgentServer:
    """Listens for the control plane and for the shepherds' hints."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._server: asyncio.Server | None = None
        self._hints: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Bind both sockets and begin to serve. Raises OSError."""
        run = self._agent.run
        self._hints = bind_socket(run.notify, socket.SOCK_DGRAM)
        self._hints.settimeout(0)
        asyncio.get_running_loop().add_reader(self._hints.fileno(), self._on_hint)
        listener = bind_socket(run.agent, socket.SOCK_STREAM)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=LINE_LIMIT, backlog=_BACKLOG)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        if peer_uid(writer.get_extra_info("socket")) not in {0, os.geteuid()}:
            writer.close()
            return
        with contextlib.suppress(asyncio.CancelledError):
            await Connection(self._agent, reader, writer).serve()

    def _on_hint(self) -> None:
        """Shepherds name the replica that changed; the files say how."""
        hints = self._hints
        with contextlib.suppress(OSError):
            while hints is not None:
                entry = self._agent.entries.get(hints.recv(256).decode("ascii", "replace"))
                if entry is not None:
                    self._agent.keeper.examine(entry)

    async def close(self) -> None:
        """Stop listening and hang up."""
        if self._hints is not None:
            asyncio.get_running_loop().remove_reader(self._hints.fileno())
            self._hints.close()
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
