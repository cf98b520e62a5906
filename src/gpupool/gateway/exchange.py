"""One request on its way to a replica, and its response on the way back.

A request is *held* while its service has no replica. It is *retried* only if no byte of a response has arrived and its
body so far is still known; after the request was sent, also only if repeating it is harmless (a safe or idempotent
method, a call by model name, or a kept connection that the replica had closed).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum, auto
from http import HTTPStatus
from time import monotonic
from typing import Protocol

from gpupool.domain.errors import ErrorCode
from gpupool.domain.protocol.gateway_table import TokenUse
from gpupool.gateway.forwarding import Destination, ForwardedPeer, request_to_replica, response_to_client
from gpupool.gateway.framing import LAST_CHUNK, BodyUntilClose, ChunkedBody, Framing, chunk
from gpupool.gateway.heads import RequestHead, ResponseHead
from gpupool.gateway.hub import Hub
from gpupool.gateway.problems import Problem
from gpupool.gateway.replica_connection import ReplicaConnection, ReplicaReader, connect_through_agent
from gpupool.gateway.routing import ReplicaLoad, RouteState

CONNECT_TIMEOUT_S = 5.0
RESPONSE_TIMEOUT_S = 900.0  # without a byte of the response: a long prompt takes minutes
MAX_ATTEMPTS = 3
MAX_REPLAY_BYTES = 64 << 10
COMMENT_DELAY_S = 1.0  # before the first comment to a held client
COMMENT_INTERVAL_S = 5.0
DEFAULT_RETRY_AFTER_S = 10
MAX_RETRY_AFTER_S = 600
_IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"})
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"


class Output(Enum):
    """The form in which the body of a response goes to the client."""

    VERBATIM = auto()
    CONTENT = auto()  # without chunks: the client speaks HTTP/1.0
    CHUNKS = auto()  # in new chunks: the gateway has begun the stream itself


class CallerConnection(ReplicaReader, Protocol):
    """The connection of the client."""

    hub: Hub
    peer: ForwardedPeer
    deadline: float

    def take_kept(self, replica: ReplicaLoad) -> ReplicaConnection | None:
        """Return an idle connection to a replica."""

    def keep(self, upstream: ReplicaConnection) -> bool:
        """Keep a connection for the next request of this client."""

    def exchange_ended(self, *, keep_alive: bool) -> None:
        """Continue with the next request, or close."""

    def abort_response(self) -> None:
        """End a response that cannot be completed."""

    def begin_tunnel(self, upstream: ReplicaConnection) -> None:
        """Pass on all bytes from now on."""

    def end_sending(self) -> bool:
        """Pass on that a replica sends nothing more in a tunnel; return whether that is possible."""

    def pause_full(self) -> None:
        """Stop reading, because the body waits for a replica."""

    def resume_full(self) -> None:
        """Read again."""


class Exchange:
    """One request with its response. ``body``: framing of the client's body; ``collected``: a body already read."""

    __slots__ = (
        "_attempts",
        "_body_bytes",
        "_client_ended",
        "_collected_bytes",
        "_connecting",
        "_held_until",
        "_keeps",
        "_next_comment",
        "_output",
        "_pending",
        "_pending_bytes",
        "_repeatable",
        "_replica_ended",
        "_request",
        "_served_at",
        "_started",
        "_tried",
        "body",
        "client",
        "destination",
        "digest",
        "ended",
        "head",
        "replica",
        "responded",
        "route",
        "streams",
        "upstream",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - created in one place
        self,
        client: CallerConnection,
        head: RequestHead,
        route: RouteState,
        target: bytes,
        prefix: bytes,
        digest: str,
        body: Framing,
        collected: bytes | None = None,
        *,
        streams: bool = False,
    ) -> None:
        self.client = client
        self.head = head
        self.route = route
        self.destination = Destination(target, prefix, route.local_host)
        self.digest = digest
        self.body = body
        self.streams = streams  # whether the client reads an event stream
        self.replica: ReplicaLoad | None = None
        self.upstream: ReplicaConnection | None = None
        self.responded = False  # a byte of a replica's response was passed on
        self.ended = False
        length = None if collected is None else len(collected)
        self._request = request_to_replica(head, self.destination, client.peer, client.hub.router.known, length)
        self._pending: list[bytes] | None = [] if collected is None else [collected]
        self._pending_bytes = 0
        self._collected_bytes = self._body_bytes = length or 0
        self._served_at: float | None = None
        self._repeatable = head.method in _IDEMPOTENT or collected is not None
        self._attempts = 0
        self._tried: tuple[ReplicaLoad, ...] = ()
        self._connecting: asyncio.Task[None] | None = None
        self._held_until: float | None = None
        self._next_comment = 0.0
        self._keeps = False  # whether the response said that the connection stays open
        self._output: Output | None = None  # set when the head has been sent
        self._client_ended = self._replica_ended = False  # of a tunnel
        self._started = monotonic()  # uvloop's own clock counts milliseconds
        route.begin(digest)

    # Towards the replica.

    def dispatch(self) -> None:
        """Choose a replica and send the request, or hold it."""
        if self.route.gone:
            self.fail(_unknown(self.route.route.key))
            return
        loop = self.client.hub.loop
        now = loop.time()
        replica = self.route.choose(now, self._tried) or self.route.choose(now)
        if replica is None:
            self._hold(now)
            return
        self._held_until = None
        self.replica = replica
        self._served_at = self._served_at or now
        replica.in_flight += 1
        self.client.deadline = now + RESPONSE_TIMEOUT_S
        kept = self.client.take_kept(replica)
        if kept is not None:
            self._send(kept)
        else:
            self._connecting = loop.create_task(self._connect(replica))

    async def _connect(self, replica: ReplicaLoad) -> None:
        loop = self.client.hub.loop
        try:
            upstream = await _connect(loop, replica)
        except (OSError, TimeoutError):
            self._connecting = None
            self._leave_replica()
            replica.failed(loop.time())
            self.dispatch()
            return
        self._connecting = None
        self._send(upstream)

    def _send(self, upstream: ReplicaConnection) -> None:
        self.upstream = upstream
        if upstream.closed:
            self.replica_failed(upstream, "the replica closed the connection", replayable=True)
            return
        pending = self._pending
        if pending:
            upstream.begin(self, b"".join([self._request, *pending]))
        else:
            upstream.begin(self, self._request)
        if self._pending_bytes > MAX_REPLAY_BYTES:
            self._pending = None
        self.client.resume_full()

    def send_body(self, data: bytes) -> None:
        """Send a part of the client's body, or keep it until there is a replica."""
        pending = self._pending
        if pending is not None:
            pending.append(data)
            self._pending_bytes += len(data)
            if self._pending_bytes > MAX_REPLAY_BYTES:
                if self.upstream is None:
                    self.client.pause_full()
                else:
                    self._pending = None  # too much to repeat
        if self.upstream is not None and not self.upstream.closed:
            self.upstream.transport.write(data)

    def replica_failed(self, upstream: ReplicaConnection, reason: str, *, replayable: bool) -> None:
        """Handle a connection that ended, or an invalid response: retry, or answer with an error."""
        reused = upstream.reused
        upstream.close()
        self.upstream = None
        self._leave_replica(tried=True)
        self._attempts += 1
        harmless = self._repeatable or reused
        if not self.responded and replayable and harmless and self._pending is not None:
            if self._attempts < MAX_ATTEMPTS:
                self.dispatch()
                return
            reason += f" {self._attempts} times"
        key = self.route.route.key
        self.fail(
            Problem(
                HTTPStatus.BAD_GATEWAY,
                ErrorCode.REPLICA_FAILED,
                f"A replica of the service {key} did not answer: {reason}.",
                f"Send the request again; 'gpupool service logs {key.partition('/')[2]}' may show the cause.",
            )
        )

    def _leave_replica(self, *, tried: bool = False) -> None:
        if self.replica is not None:
            self.replica.in_flight -= 1
            if tried:
                self._tried = (*self._tried, self.replica)
            self.replica = None

    # Held requests.

    @property
    def held(self) -> bool:
        """Return whether it waits for a replica."""
        return self in self.route.held

    def _hold(self, now: float) -> None:
        route, limits = self.route, self.route.route.limits
        if self._held_until is None:
            self._held_until = now + limits.hold_s
            self._next_comment = now + COMMENT_DELAY_S
            if any(b"text/event-stream" in value.lower() for value in self.head.values(b"accept")):
                self.streams = True
        if not limits.held:
            self.fail(self._not_ready())
            return
        if len(route.held) >= limits.held:
            self.fail(self._not_ready(f"it already holds {limits.held} requests"))
            return
        if now >= self._held_until:
            self.fail(self._not_ready(f"no replica became ready within {limits.hold_s:g} seconds"))
            return
        self.client.deadline = self._held_until
        route.held[self] = None
        route.changed = True
        if len(route.held) == 1:
            self.client.hub.wake(route)

    def _not_ready(self, why: str = "") -> Problem:
        route = self.route.route
        reason = f" ({route.reason.removesuffix('.')})" if route.reason else ""
        estimate = DEFAULT_RETRY_AFTER_S if route.estimate_s is None else round(route.estimate_s)
        return Problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            ErrorCode.SERVICE_NOT_READY,
            f"The service {route.key} has no replica that is ready{reason}{': ' if why else ''}{why}.",
            f"Try again later; 'gpupool service describe {route.name}' shows what it waits for.",
            max(1, min(MAX_RETRY_AFTER_S, estimate)),
        )

    def tick(self, now: float) -> None:
        """Send a comment to a held client that reads an event stream."""
        if not self.streams or not self.held or now < self._next_comment or self.head.method == b"HEAD":
            return
        self._next_comment = now + COMMENT_INTERVAL_S
        route = self.route.route
        text = "waiting for a replica"
        if route.estimate_s is not None:
            text += f", expected in {round(route.estimate_s)} s"
        if route.reason:
            text += f" ({route.reason})"
        comment = f": {text}\n\n".encode()
        if self._output is None:
            if self.head.minor:
                self._output = Output.CHUNKS
                self._keeps = self.head.keep_alive
                keep = b"" if self._keeps else b"Connection: close\r\n"
                self.client.send(_STREAM_HEAD + keep + b"Transfer-Encoding: chunked\r\n\r\n")
            else:
                self._output = Output.CONTENT
                self.client.send(_STREAM_HEAD + b"Connection: close\r\n\r\n")
        self.client.send(self.encode([comment]))

    # Towards the client.

    def decodes(self, framing: Framing) -> bool:
        """Return whether the response's body is sent without its own framing."""
        if self._output is not None:
            return True
        return isinstance(framing, BodyUntilClose if self.head.minor else ChunkedBody)

    def respond(self, head: ResponseHead, framing: Framing) -> bytes:
        """Return the head for the client; nothing if the gateway has already begun the stream."""
        client = self.client
        self._release_body()
        self.route.answered((monotonic() - self._started) * 1e3)
        if self.replica is not None:
            self.replica.answered()
        if self._output is not None:
            if head.status != 200 or not head.value(b"content-type").lower().startswith(b"text/event-stream"):
                key = self.route.route.key
                self.fail(
                    Problem(
                        HTTPStatus.BAD_GATEWAY,
                        ErrorCode.REPLICA_FAILED,
                        f"The service {key} answered {head.status} and no event stream.",
                        "Send the request again, or without 'Accept: text/event-stream'.",
                    )
                )
            else:
                self.responded = True
            return b""
        self.responded = True
        self._keeps = self.head.keep_alive and not client.hub.stopping and self.body.done
        ending: tuple[bytes, ...] = () if self._keeps else (b"Connection: close",)
        if not self.head.minor:
            self._output = Output.CONTENT
        else:
            self._output = Output.CHUNKS if isinstance(framing, BodyUntilClose) else Output.VERBATIM
        if self._output is Output.CHUNKS or (head.chunked and self.head.minor):
            ending += (b"Transfer-Encoding: chunked",)
        elif head.length is not None:
            ending += (b"Content-Length: %d" % head.length,)
        return response_to_client(head, self.destination, ending)

    def interim(self, head: ResponseHead) -> None:
        """Pass on an interim response, for example 100 Continue."""
        if self.head.minor and self._output is None and (head.status != 100 or self.head.expects_continue):
            self.client.send(response_to_client(head, self.destination, ()))

    def encode(self, content: list[bytes]) -> bytes:
        """Return content in the form of this response's body."""
        joined = b"".join(content)
        return chunk(joined) if self._output is Output.CHUNKS else joined

    def progress(self) -> None:
        """Extend the time limit, because a part of the response arrived."""
        self.client.deadline = self.client.hub.loop.time() + RESPONSE_TIMEOUT_S

    def complete(self, upstream: ReplicaConnection, *, reusable: bool) -> None:
        """End with a complete response; keep the connection to the replica if possible."""
        if self._output is Output.CHUNKS:
            self.client.send(LAST_CHUNK)
        replica = upstream.replica
        reusable = reusable and self.body.done and not replica.draining and not replica.gone and not upstream.closed
        self.upstream = None
        self._finish(upstream, error=False)
        if reusable and self.client.keep(upstream):
            upstream.exchange = None
        else:
            upstream.close()
        self.client.exchange_ended(keep_alive=self._keeps and self.body.done)

    def fail(self, problem: Problem) -> None:
        """Answer with an error; a response that has begun ends here, incomplete."""
        if self.ended:
            return
        client = self.client
        upstream, self.upstream = self.upstream, None
        self.route.counts.refused += problem.code is ErrorCode.SERVICE_NOT_READY
        self._finish(upstream, error=problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR)
        if upstream is not None:
            upstream.flush()
            upstream.close()
        if self.responded:
            client.abort_response()
        elif self._output is not None:
            end = LAST_CHUNK if self._output is Output.CHUNKS else b""
            client.send(self.encode([problem.event()]) + end)
            client.exchange_ended(keep_alive=False)
        else:
            keep_alive = self.head.keep_alive and self.body.done
            client.send(problem.response(keep_alive=keep_alive, head_only=self.head.method == b"HEAD"))
            client.exchange_ended(keep_alive=keep_alive)

    def timed_out(self, *, body_missing: bool) -> None:
        """Handle a passed time limit."""
        route = self.route.route
        if self.held:
            self.fail(self._not_ready(f"no replica became ready within {route.limits.hold_s:g} seconds"))
        elif body_missing:
            self.fail(
                Problem(HTTPStatus.REQUEST_TIMEOUT, ErrorCode.REQUEST_TIMEOUT, "The body did not arrive in time.")
            )
        else:
            self.fail(
                Problem(
                    HTTPStatus.GATEWAY_TIMEOUT,
                    ErrorCode.REPLICA_TIMEOUT,
                    f"The service {route.key} sent nothing for {RESPONSE_TIMEOUT_S:g} seconds.",
                    "Ask for a stream, or for a shorter answer.",
                )
            )

    def cancel(self) -> None:
        """End because the client is gone; the replica notices the closed connection."""
        if self.ended:
            return
        upstream, self.upstream = self.upstream, None
        self._finish(upstream, error=False)
        if upstream is not None:
            upstream.close()

    def _release_body(self) -> None:
        """Forget the body: the request is not repeated any more."""
        self._pending = None
        self.client.hub.collected_bytes -= self._collected_bytes
        self._collected_bytes = 0

    def _finish(self, upstream: ReplicaConnection | None, *, error: bool) -> None:
        now = self.client.hub.loop.time()
        use = TokenUse(
            errors=int(error),
            received=self.body.received + self._body_bytes + (0 if upstream is None else upstream.tunnelled),
            sent=0 if upstream is None else upstream.received,
            busy_s=0.0 if self._served_at is None else now - self._served_at,
        )
        self.ended = True
        self._release_body()
        self.route.held.pop(self, None)
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        self._leave_replica()
        self.route.end(self.digest, use)

    # A WebSocket: bytes in both directions until both have ended.

    def switch(self, upstream: ReplicaConnection, head: ResponseHead, data: bytes) -> None:
        """Begin a tunnel with the response 101 and the first bytes of the replica."""
        self.respond(head, self.body)
        ending = (b"Connection: Upgrade", b"Upgrade: websocket")
        self.client.send(response_to_client(head, self.destination, ending) + data)
        self.client.begin_tunnel(upstream)

    def close_tunnel(self) -> None:
        """Close both connections after their last bytes."""
        if self.ended:
            return
        upstream, self.upstream = self.upstream, None
        self._finish(upstream, error=False)
        if upstream is not None:
            upstream.close()
        self.client.exchange_ended(keep_alive=False)

    def client_ended_sending(self) -> bool:
        """Pass on that the client sends nothing more in a tunnel; return whether the other direction continues."""
        upstream = self.upstream
        self._client_ended = True
        if upstream is None or upstream.closed or self._replica_ended:
            self.close_tunnel()
            return False
        with suppress(OSError, RuntimeError):
            upstream.transport.write_eof()
        return True

    def replica_ended_sending(self) -> bool:
        """Pass on that the replica sends nothing more in a tunnel; return whether the other direction continues."""
        self._replica_ended = True
        if self._client_ended or not self.client.end_sending():
            self.close_tunnel()
            return False
        return True


async def _connect(loop: asyncio.AbstractEventLoop, replica: ReplicaLoad) -> ReplicaConnection:
    """Connect directly, or through the agent if the network does not allow that. Raises OSError, TimeoutError."""
    if replica.direct:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, upstream = await loop.create_connection(
                    lambda: ReplicaConnection(replica), replica.host, replica.port
                )
                return upstream
        except ConnectionRefusedError:
            raise  # it does not listen
        except (OSError, TimeoutError):
            if not replica.agent:
                raise
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        upstream = await connect_through_agent(loop, replica)
    replica.direct = False
    return upstream


def _unknown(key: str) -> Problem:
    return Problem(
        HTTPStatus.NOT_FOUND,
        ErrorCode.UNKNOWN_SERVICE,
        f"There is no service {key}.",
        "'gpupool service list' shows the services that you may use.",
    )
