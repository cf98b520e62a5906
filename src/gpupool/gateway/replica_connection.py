"""A connection to a replica. It carries one request at a time, and belongs to one client connection only.

A server that listens only on its own node's loopback address is reached through its node's agent, which connects to
ports of the replica's own processes only. After its answer, the unix socket carries the bytes of the port.
"""

from __future__ import annotations

import asyncio
import json
from typing import Protocol, cast

from gpupool.gateway.framing import BodyUntilClose, Framing, FramingError, LengthBody
from gpupool.gateway.heads import (
    END,
    MAX_RESPONSE_HEAD_BYTES,
    HeadError,
    RequestHead,
    ResponseHead,
    parse_response,
)
from gpupool.gateway.routing import ReplicaLoad
from gpupool.gateway.sockets import set_options
from gpupool.unix_sockets import ShortPath

MAX_INTERIM_RESPONSES = 16
MAX_ANSWER_BYTES = 64 << 10  # of the agent


class ReplicaReader(Protocol):
    """The client of a request, which reads the response."""

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""

    def pause_slow_replica(self) -> None:
        """Stop reading, because the replica reads slowly."""

    def resume_slow_replica(self) -> None:
        """Read again."""


class Receiver(Protocol):
    """The exchange that a response belongs to."""

    head: RequestHead

    @property
    def client(self) -> ReplicaReader:
        """Return the client."""

    def decodes(self, framing: Framing) -> bool:
        """Return whether the response's body is sent without its own framing."""

    def respond(self, head: ResponseHead, framing: Framing) -> bytes:
        """Return the head for the client."""

    def interim(self, head: ResponseHead) -> None:
        """Pass on an interim response."""

    def encode(self, content: list[bytes]) -> bytes:
        """Return content in the form of this response's body."""

    def progress(self) -> None:
        """Extend the time limit."""

    def complete(self, upstream: ReplicaConnection, *, reusable: bool) -> None:
        """End with a complete response."""

    def replica_failed(self, upstream: ReplicaConnection, reason: str, *, replayable: bool) -> None:
        """Handle a connection that ended, or an invalid response."""

    def switch(self, upstream: ReplicaConnection, head: ResponseHead, data: bytes) -> None:
        """Begin a tunnel."""

    def replica_ended_sending(self) -> bool:
        """Pass on that the replica sends nothing more in a tunnel; return whether the other direction continues."""

    def close_tunnel(self) -> None:
        """Close both connections after their last bytes."""


class ReplicaConnection(asyncio.Protocol):
    """Reads responses and passes them to the exchange; ``reused`` after its first response."""

    __slots__ = (
        "_buffer",
        "_content",
        "_framing",
        "_head",
        "_interim",
        "_paused",
        "_unsent",
        "closed",
        "exchange",
        "idle_since",
        "received",
        "replica",
        "reused",
        "transport",
        "tunnel",
        "tunnelled",
        "writable",
    )

    def __init__(self, replica: ReplicaLoad) -> None:
        self.replica = replica
        self.exchange: Receiver | None = None
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.reused = False
        self.closed = False
        self.tunnel = False
        self.received = 0  # bytes of the body of this response
        self.tunnelled = 0  # bytes of the client in a tunnel
        self.writable = True
        self.idle_since = 0.0
        self._buffer = b""
        self._framing: Framing | None = None
        self._head: ResponseHead | None = None
        self._content: list[bytes] | None = None
        self._interim = 0
        self._paused = False
        self._unsent = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the new connection (called by the event loop)."""
        self.transport = cast("asyncio.Transport", transport)
        set_options(transport)

    def begin(self, exchange: Receiver, request: bytes) -> None:
        """Send a request."""
        self.exchange = exchange
        self.resume_reading()
        self._buffer, self._framing, self._head, self._content, self._interim = b"", None, None, None, 0
        self._unsent = b""
        self.received = 0
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Pass on a part of a response (called by the event loop)."""
        exchange = self.exchange
        if exchange is None:
            self.close()  # nothing was asked
        elif self.tunnel:
            self.received += len(data)
            exchange.client.send(data)
        else:
            try:
                self._read(exchange, data)
            except (HeadError, FramingError) as error:
                exchange.replica_failed(self, str(error), replayable=False)

    def _read(self, exchange: Receiver, data: bytes) -> None:
        out = b""
        if self._framing is None:
            data = self._buffer + data if self._buffer else data
            head, start = self._read_head(exchange, data)
            if head is None:
                return
            self._framing = framing = head.framing(exchange.head.method)
            self._content = [] if exchange.decodes(framing) else None
            end = framing.feed(data, start, self._content)
            out = exchange.respond(head, framing)
            if self.exchange is not exchange:
                return  # the answer was refused
        else:
            framing, start = self._framing, 0
            end = framing.feed(data, 0, self._content)
        self.received = framing.received
        content = self._content
        if content is None:
            part = data[start:end] if start or end < len(data) else data
            if self._unsent:
                out, self._unsent = self._unsent, b""
            if out and not part and not framing.done and isinstance(framing, LengthBody):
                self._unsent = out  # servers often send head and body apart: one packet is enough for both
            else:
                exchange.client.send(out + part if out else part)
        else:
            exchange.client.send(out + exchange.encode(content))
            content.clear()
        exchange.progress()
        if framing.done:
            head = cast("ResponseHead", self._head)
            exchange.complete(self, reusable=head.keep_alive and end == len(data))

    def _read_head(self, exchange: Receiver, data: bytes) -> tuple[ResponseHead | None, int]:
        """Return the head of the final response, and the index after it; pass on interim ones."""
        start = 0
        while True:
            end = data.find(END, start) + len(END)
            if end < len(END):
                if len(data) - start > MAX_RESPONSE_HEAD_BYTES:
                    raise HeadError("the response's head is too large")
                self._buffer = data[start:]
                return None, start
            self._head = head = parse_response(data[start:end])
            start = end
            if head.status >= 200:
                self._buffer = b""
                return head, start
            self._interim += 1
            if self._interim > MAX_INTERIM_RESPONSES:
                raise HeadError("the replica sent too many interim responses")
            if head.status == 101:
                if not exchange.head.websocket:
                    raise HeadError("the replica changed the protocol, but the client did not ask for it")
                self.tunnel = True
                self._buffer = b""
                exchange.switch(self, head, data[start:])
                return None, start
            exchange.interim(head)

    def eof_received(self) -> bool:
        """Handle the end of the replica's sending side (called by the event loop)."""
        if self.tunnel and self.exchange is not None:
            return self.exchange.replica_ended_sending()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the connection (called by the event loop)."""
        self.closed = True
        exchange = self.exchange
        if exchange is None:
            return
        self.flush()
        if self.tunnel:
            exchange.close_tunnel()
        elif isinstance(self._framing, BodyUntilClose) and error is None:
            exchange.complete(self, reusable=False)
        else:
            exchange.replica_failed(self, "the replica closed the connection", replayable=True)

    def flush(self) -> None:
        """Send a head that waits for its body."""
        if self._unsent and self.exchange is not None:
            self.exchange.client.send(self._unsent)
            self._unsent = b""

    def close(self) -> None:
        """Close it; a response in progress is abandoned, which the replica notices."""
        self.exchange = None
        if not self.closed:
            self.closed = True
            if self.tunnel:
                self.transport.close()  # after the last bytes of the client
            else:
                self.transport.abort()

    def pause_writing(self) -> None:
        """Stop reading from the client, because the replica reads slowly (called by the event loop)."""
        self.writable = False
        if self.exchange is not None:
            self.exchange.client.pause_slow_replica()

    def resume_writing(self) -> None:
        """Read from the client again (called by the event loop)."""
        self.writable = True
        if self.exchange is not None:
            self.exchange.client.resume_slow_replica()

    def pause_reading(self) -> None:
        """Stop reading, because the client reads slowly."""
        if not self.closed and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self._paused:
            self._paused = False
            if not self.closed:
                self.transport.resume_reading()


async def connect_through_agent(loop: asyncio.AbstractEventLoop, replica: ReplicaLoad) -> ReplicaConnection:
    """Return a connection to the port of a replica. Raises ``OSError``."""
    connected: asyncio.Future[ReplicaConnection] = loop.create_future()
    with ShortPath(replica.agent) as name:
        transport, _ = await loop.create_unix_connection(lambda: _Handshake(replica, connected), name)
    try:
        return await connected
    except BaseException:
        transport.abort()
        raise


class _Handshake(asyncio.Protocol):
    """Asks the agent for the port, and hands the connection over when the agent has agreed."""

    def __init__(self, replica: ReplicaLoad, connected: asyncio.Future[ReplicaConnection]) -> None:
        self._replica = replica
        self._connected = connected
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request (called by the event loop)."""
        self._transport = cast("asyncio.Transport", transport)
        params = {"key": self._replica.key, "port": self._replica.port, "activity": False}
        self._transport.write(json.dumps({"id": 0, "method": "connect_port", "params": params}).encode() + b"\n")

    def data_received(self, data: bytes) -> None:
        """Read the agent's answer; bytes after it are the replica's (called by the event loop)."""
        self._answer += data
        line, end, rest = self._answer.partition(b"\n")
        if not end and len(line) <= MAX_ANSWER_BYTES:
            return
        try:
            answer = json.loads(line)
            refused = answer.get("error")
        except (ValueError, AttributeError):
            refused = {"message": "its answer is not JSON"}
        if refused is not None or not end:
            self._fail(f"the agent refused: {refused}"[:300])
            return
        if self._connected.done():
            return
        upstream = ReplicaConnection(self._replica)
        self._transport.set_protocol(upstream)
        upstream.connection_made(self._transport)
        self._connected.set_result(upstream)
        if rest:
            upstream.data_received(rest)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - as the base has it
        """Handle the end of the connection (called by the event loop)."""
        self._fail("the agent closed the connection")

    def _fail(self, reason: str) -> None:
        if not self._connected.done():
            self._connected.set_exception(ConnectionError(reason))
