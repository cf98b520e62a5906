"""A connection of a client: reads request heads and bodies, checks them, and starts an exchange for each request.

States: reading a head; collecting the body of a call by model name; an exchange; a tunnel (WebSocket); closing. One
request is in progress at a time: pipelined ones wait in ``_buffer``.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from gpupool.domain.errors import ErrorCode
from gpupool.gateway import problems
from gpupool.gateway.credentials import is_cookie_value, presented, session_cookie, take_parameter
from gpupool.gateway.exchange import RESPONSE_TIMEOUT_S, Exchange
from gpupool.gateway.forwarding import ForwardedPeer
from gpupool.gateway.framing import Framing, FramingError, NoBody
from gpupool.gateway.heads import END, HeadError, RequestHead, check_part, parse_request
from gpupool.gateway.hub import MAX_COLLECTED_BYTES, Hub
from gpupool.gateway.local_programs import from_own_origin
from gpupool.gateway.problems import Problem, plain_response
from gpupool.gateway.routing import parse_model_call, reserved
from gpupool.gateway.sockets import set_options

if TYPE_CHECKING:
    from gpupool.gateway.replica_connection import ReplicaConnection
    from gpupool.gateway.routing import ReplicaLoad, RouteState

HEAD_TIMEOUT_S = 15.0
IDLE_TIMEOUT_S = 75.0  # between requests
BODY_TIMEOUT_S = 60.0  # without a byte of the body
COLLECT_TIMEOUT_S = 300.0  # for a whole body that is read first
LINGER_S = 2.0
MAX_MODEL_BODY_BYTES = 10 << 20
MAX_PIPELINED_BYTES = 64 << 10
MAX_KEPT = 4  # connections to replicas, idle, of one client connection
MAX_KEPT_S = 3.0  # servers usually close idle connections after 5 s
FOREVER = float("inf")
_MODEL_PATHS = frozenset({b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings"})
_MODELS = b"/v1/models"
_UPSTREAM, _FULL, _PIPELINED = 1, 2, 4  # reasons not to read


class ClientConnection(asyncio.Protocol):
    """One connection of a client."""

    __slots__ = (
        "_buffer",
        "_closing",
        "_collect_until",
        "_collected",
        "_collecting",
        "_eof",
        "_exchange",
        "_framing",
        "_kept",
        "_lost",
        "_pauses",
        "_resuming",
        "_tunnel",
        "_unsent",
        "deadline",
        "hub",
        "peer",
        "transport",
    )

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.peer = ForwardedPeer(b"", trusted=False, scheme=b"http")
        self.deadline = 0.0
        self._buffer = b""  # an incomplete head, or bytes after the present request
        self._exchange: Exchange | None = None
        self._collecting: RequestHead | None = None
        self._collected: list[bytes] = []
        self._collect_until = 0.0
        self._framing: Framing = NoBody()
        self._kept: dict[ReplicaLoad, ReplicaConnection] = {}
        self._tunnel: ReplicaConnection | None = None
        self._pauses = 0
        self._resuming = False
        self._unsent = 0
        self._closing = False
        self._eof = False
        self._lost = False

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle the new connection."""
        hub = self.hub
        self.transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        text = address[0] if isinstance(address, tuple) else ""
        secure = transport.get_extra_info("sslcontext") is not None
        self.peer = ForwardedPeer(text.encode(), trusted=text in hub.trusted, scheme=b"https" if secure else b"http")
        set_options(transport)
        hub.connections.add(self)
        hub.keep_ticking()
        self.deadline = hub.loop.time() + HEAD_TIMEOUT_S
        if len(hub.connections) > hub.max_connections:
            self._refuse(problems.overloaded("it has too many connections"))

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the client."""
        if self._tunnel is not None:
            if not self._tunnel.closed:
                self._tunnel.tunnelled += len(data)
                self._tunnel.transport.write(data)
        elif self._closing:
            return
        elif self._collecting is not None:
            self._collect(data)
        elif self._exchange is None:
            self._read_head(data)
        elif not self._exchange.body.done:
            self._read_body(self._exchange, data, 0)
        else:
            self._keep_for_later(data)

    def eof_received(self) -> bool:
        """Handle the end of the client's sending side.

        Clients that leave look like clients that only stop sending. One that wants to use the connection
        again has left; one that asked to close it gets its answer.
        """
        if self._tunnel is not None:
            self._eof = True
            return self._exchange is not None and self._exchange.client_ended_sending()
        exchange = self._exchange
        self._eof = True
        if self._closing:
            return False
        if self._collecting is not None or (exchange is not None and not exchange.body.done):
            self._refuse_body("The connection ended before the body was complete.")
            return True
        if exchange is None:
            if not self._buffer:
                return False
            self._refuse(problems.malformed("the connection ended within the head", HTTPStatus.BAD_REQUEST))
            return True
        return not exchange.head.keep_alive

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - as the base has it
        """Handle the end of the connection."""
        self._lost = self._closing = True
        self.hub.connections.discard(self)
        if self.hub.stopping and not self.hub.connections:
            self.hub.without_connections.set()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.cancel()
        self._stop_collecting()
        for upstream in self._kept.values():
            upstream.close()
        self._kept.clear()

    def pause_writing(self) -> None:
        """Stop reading from the replica: the client reads slowly."""
        upstream = self._exchange.upstream if self._exchange is not None else None
        if upstream is not None:
            upstream.pause_reading()

    def resume_writing(self) -> None:
        """Read from the replica again."""
        upstream = self._exchange.upstream if self._exchange is not None else None
        if upstream is not None:
            upstream.resume_reading()

    # Timers.

    def tick(self, now: float) -> None:
        """Act on passed time limits (called twice a second)."""
        if self._kept:
            for replica, upstream in list(self._kept.items()):
                if now - upstream.idle_since > MAX_KEPT_S or replica.draining or replica.gone or upstream.closed:
                    del self._kept[replica]
                    upstream.close()
        exchange = self._exchange
        if exchange is not None and exchange.streams:
            exchange.tick(now)
        if now > self.deadline:
            self._timed_out()

    def _timed_out(self) -> None:
        exchange = self._exchange
        if self._closing:
            unsent = self.transport.get_write_buffer_size()
            if 0 < unsent != self._unsent:  # the client reads, but slowly
                self._unsent = unsent
                self.deadline = self.hub.loop.time() + LINGER_S
            else:
                self.transport.abort()
        elif exchange is not None:
            exchange.timed_out(body_missing=not exchange.body.done and not self._pauses)
        elif self._collecting is not None:
            self._refuse_body("The body did not arrive in time.", HTTPStatus.REQUEST_TIMEOUT)
        elif self._buffer:
            problem = Problem(
                HTTPStatus.REQUEST_TIMEOUT, ErrorCode.REQUEST_TIMEOUT, "The head of the request did not arrive in time."
            )
            self._refuse(problem)
        else:
            self.transport.close()

    # Requests.

    def _read_head(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        else:
            self.deadline = self.hub.loop.time() + HEAD_TIMEOUT_S
        while data.startswith(b"\r\n"):
            data = data[2:]  # after an earlier body: allowed, and sent by some clients
        end = data.find(END) + len(END)
        try:
            if end < len(END):
                check_part(data)
                self._buffer = data
                return
            head = parse_request(data[:end])
        except HeadError as error:
            self._refuse(problems.malformed(str(error), error.status))
            return
        self._buffer = b""
        self._route(head, data, end)

    def _route(self, head: RequestHead, data: bytes, start: int) -> None:
        """Find the service of a request; ``data`` has its body from ``start`` on."""
        router, target = self.hub.router, head.target
        by_host = router.by_host(head.host)
        if by_host is not None:
            self._to_service(head, by_host, target, b"", data, start)
            return
        if reserved(head.host):
            self._answer(head, problems.closed_port(), data, start)
            return
        if target.startswith(b"/s/"):
            found = router.by_path(target)
            if found is None:
                self._answer(head, problems.unknown_service(), data, start)
            elif not found[1]:
                query = b"".join(target.partition(b"?")[1:])
                self._redirect(head, found[0].prefix + b"/" + query, data, start)
            else:
                self._to_service(head, found[0], found[1], found[0].prefix, data, start)
            return
        path = target.partition(b"?")[0]
        if path in _MODEL_PATHS:
            self._to_model(head, data, start)
        elif path == _MODELS or path.startswith(_MODELS + b"/"):
            self._list_models(head, path[len(_MODELS) + 1 :], data, start)
        else:
            self._answer(head, problems.unknown_path(), data, start)

    def _to_service(
        self, head: RequestHead, route: RouteState, target: bytes, prefix: bytes, data: bytes, start: int
    ) -> None:
        target, parameter = take_parameter(target)
        if route.route.local and not from_own_origin(head, self.peer.scheme_of(head)):
            self._answer(head, problems.foreign_origin(), data, start)
            return
        digest = route.admits(presented(head.fields, parameter))
        if digest is None:
            self._answer(head, self._not_admitted(head, parameter), data, start)
            return
        if parameter is not None and not head.websocket:
            self._set_cookie(head, route, prefix, target, parameter, data, start)
            return
        limit = route.route.limits.body_bytes
        if head.length is not None and head.length > limit:
            self._answer(head, problems.too_large(limit), data, start)
            return
        exchange = Exchange(self, head, route, target, prefix, digest, head.framing())
        self._exchange = exchange
        if not exchange.body.done:
            self._read_body(exchange, data, start)
        elif start < len(data):
            self._keep_for_later(data[start:])
        if self._exchange is exchange:
            exchange.dispatch()  # with the body that has arrived

    def _read_body(self, exchange: Exchange, data: bytes, start: int) -> None:
        body = exchange.body
        try:
            end = body.feed(data, start)
        except FramingError as error:
            exchange.fail(problems.malformed(str(error), HTTPStatus.BAD_REQUEST))
            return
        limit = exchange.route.route.limits.body_bytes
        if body.received > limit:
            exchange.fail(problems.too_large(limit))
            return
        exchange.send_body(data[start:end] if start or end < len(data) else data)
        if end < len(data):
            self._keep_for_later(data[end:])
        if not exchange.held:
            self.deadline = self.hub.loop.time() + (RESPONSE_TIMEOUT_S if body.done else BODY_TIMEOUT_S)

    def _keep_for_later(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > MAX_PIPELINED_BYTES:
            self._pause(_PIPELINED)

    # Calls by model name.

    def _to_model(self, head: RequestHead, data: bytes, start: int) -> None:
        if head.method != b"POST":
            self._answer(head, problems.method_not_allowed(b"POST"), data, start)
            return
        if not self.hub.router.may_list_models(presented(head.fields)):
            self._answer(head, self._not_admitted(head), data, start)
            return
        if head.length is not None and head.length > MAX_MODEL_BODY_BYTES:
            self._answer(head, problems.too_large(MAX_MODEL_BODY_BYTES), data, start)
            return
        now = self.hub.loop.time()
        self._collecting, self._collected, self._framing = head, [], head.framing()
        self._collect_until = now + COLLECT_TIMEOUT_S
        if head.expects_continue and start == len(data):
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._collect(data[start:])

    def _collect(self, data: bytes) -> None:
        framing, head = self._framing, cast("RequestHead", self._collecting)
        before = framing.received
        try:
            end = framing.feed(data, 0, self._collected)
        except FramingError as error:
            self._stop_collecting()
            self._refuse(problems.malformed(str(error), HTTPStatus.BAD_REQUEST))
            return
        self.hub.collected_bytes += framing.received - before
        if framing.received > MAX_MODEL_BODY_BYTES or self.hub.collected_bytes > MAX_COLLECTED_BYTES:
            oversized = framing.received > MAX_MODEL_BODY_BYTES
            self._stop_collecting()
            full = problems.overloaded("it has no memory for bodies")
            self._refuse(problems.too_large(MAX_MODEL_BODY_BYTES) if oversized else full)
            return
        if not framing.done:
            self.deadline = min(self._collect_until, self.hub.loop.time() + BODY_TIMEOUT_S)
            return
        body = b"".join(self._collected)
        self._stop_collecting()
        self._buffer = data[end:]
        self._call_model(head, body)

    def _stop_collecting(self) -> None:
        if self._collecting is not None:
            self.hub.collected_bytes -= self._framing.received
            self._collecting, self._collected = None, []

    def _call_model(self, head: RequestHead, body: bytes) -> None:
        call = parse_model_call(body)
        if call is None:
            self._answer(head, problems.no_model())
            return
        digests = presented(head.fields)
        for route in self.hub.router.by_model(call.model):
            digest = route.admits(digests)
            if digest is None:
                continue
            if len(body) > route.route.limits.body_bytes:
                self._answer(head, problems.too_large(route.route.limits.body_bytes))
                return
            self.hub.collected_bytes += len(body)
            self._exchange = Exchange(self, head, route, head.target, b"", digest, NoBody(), body, streams=call.stream)
            self._exchange.dispatch()
            return
        self._answer(head, problems.unknown_model(call.model))

    def _list_models(self, head: RequestHead, name: bytes, data: bytes, start: int) -> None:
        if head.method not in {b"GET", b"HEAD"}:
            self._answer(head, problems.method_not_allowed(b"GET"), data, start)
            return
        if not self.hub.router.may_list_models(presented(head.fields)):
            self._answer(head, self._not_admitted(head), data, start)
            return
        entries = self.hub.router.model_entries(presented(head.fields))
        wanted = name.decode("latin-1")
        answer = entries.get(wanted) if wanted else {"object": "list", "data": list(entries.values())}
        if answer is None:
            self._answer(head, problems.unknown_model(wanted), data, start)
            return
        self._send_own(head, HTTPStatus.OK, json.dumps(answer).encode(), "application/json", [], data, start)

    # Answers of the gateway itself.

    def _not_admitted(self, head: RequestHead, parameter: bytes | None = None) -> Problem:
        known = any(digest in self.hub.router.known for digest in presented(head.fields, parameter))
        return problems.not_admitted(known=known)

    def _set_cookie(  # noqa: PLR0913, PLR0917 - the parts of one request
        self,
        head: RequestHead,
        route: RouteState,
        prefix: bytes,
        target: bytes,
        token: bytes,
        data: bytes,
        start: int,
    ) -> None:
        """Store the token of a link as a cookie, and load the page again without it."""
        if head.method not in {b"GET", b"HEAD"} or not is_cookie_value(token):
            self._answer(head, problems.method_not_allowed(b"GET"), data, start)
            return
        cookie = session_cookie(token, prefix, secure=self.peer.scheme_of(head) == b"https")
        extra = [] if route.public else [f"Set-Cookie: {cookie.decode()}"]
        place = prefix + b"/" + target.lstrip(b"/\\")  # two slashes would name another host
        self._redirect(head, place, data, start, HTTPStatus.SEE_OTHER, extra)

    def _redirect(
        self,
        head: RequestHead,
        place: bytes,
        data: bytes,
        start: int,
        status: HTTPStatus = HTTPStatus.PERMANENT_REDIRECT,
        extra: list[str] | None = None,
    ) -> None:
        fields = [f"Location: {place.decode('latin-1')}", "Referrer-Policy: no-referrer", *(extra or [])]
        self._send_own(head, status, b"", "text/plain", fields, data, start)

    def _answer(self, head: RequestHead, problem: Problem, data: bytes = b"", start: int = 0) -> None:
        """Answer a request with an error."""
        keeps = self._skip_body(head, data, start)
        self.send(problem.response(keep_alive=keeps, head_only=head.method == b"HEAD"))
        self._after_own(keeps=keeps)

    def _send_own(  # noqa: PLR0913, PLR0917 - the parts of one response
        self,
        head: RequestHead,
        status: HTTPStatus,
        body: bytes,
        media_type: str,
        extra: list[str],
        data: bytes,
        start: int,
    ) -> None:
        keeps = self._skip_body(head, data, start)
        head_only = head.method == b"HEAD"
        self.send(plain_response(status, body, media_type, extra, keep_alive=keeps, head_only=head_only))
        self._after_own(keeps=keeps)

    def _skip_body(self, head: RequestHead, data: bytes, start: int) -> bool:
        """Skip the body of a request that is answered here; return whether the connection can be used again.

        A body that has not arrived completely is not waited for.
        """
        if start:
            framing = head.framing()
            with suppress(FramingError):
                self._buffer = data[framing.feed(data, start) :]
            return framing.done and head.keep_alive and not self.hub.stopping
        return head.keep_alive and not self.hub.stopping

    def _after_own(self, *, keeps: bool) -> None:
        if keeps:
            self._next()
        else:
            self._finish()

    def _refuse_body(self, detail: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        code = ErrorCode.MALFORMED_REQUEST if status is HTTPStatus.BAD_REQUEST else ErrorCode.REQUEST_TIMEOUT
        problem = Problem(status, code, detail, "Send the request again.")
        if self._exchange is not None:
            self._exchange.fail(problem)
        else:
            self._stop_collecting()
            self._refuse(problem)

    def _refuse(self, problem: Problem) -> None:
        """Answer with an error and close: the rest of the input is not understood."""
        self._buffer = b""
        self.send(problem.response(keep_alive=False))
        self._finish()

    # For the exchange.

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""
        if data and not self._lost:
            self.transport.write(data)

    def take_kept(self, replica: ReplicaLoad) -> ReplicaConnection | None:
        """Return an idle connection to a replica."""
        upstream = self._kept.pop(replica, None)
        return None if upstream is None or upstream.closed else upstream

    def keep(self, upstream: ReplicaConnection) -> bool:
        """Keep a connection for the next request of this client; return False if it cannot be kept."""
        if self._lost or self._closing or len(self._kept) >= MAX_KEPT:
            return False
        upstream.reused = True
        upstream.idle_since = self.hub.loop.time()
        self._kept[upstream.replica] = upstream
        return True

    def exchange_ended(self, *, keep_alive: bool) -> None:
        """Continue with the next request, or close."""
        self._exchange = None
        self._tunnel = None
        if self._lost:
            return
        if self._pauses:
            self._resume(_UPSTREAM | _FULL)
        if keep_alive and not self._eof and not self.hub.stopping:
            self._next()
        else:
            self._finish()

    def abort_response(self) -> None:
        """End a response that cannot be completed: without its end, the client notices."""
        self._exchange = None
        self._closing = True
        self.deadline = self.hub.loop.time() + LINGER_S
        self.transport.close()

    def begin_tunnel(self, upstream: ReplicaConnection) -> None:
        """Pass on all bytes from now on."""
        self._tunnel = upstream
        self.deadline = FOREVER
        data, self._buffer = self._buffer, b""
        self._resume(_PIPELINED | _FULL)
        if data:
            upstream.transport.write(data)

    def end_sending(self) -> bool:
        """Pass on that a replica sends nothing more in a tunnel; return whether that is possible."""
        if self._lost or not self.transport.can_write_eof():
            return False
        self.transport.write_eof()
        return True

    def pause_slow_replica(self) -> None:
        """Stop reading, because the replica reads slowly."""
        self._pause(_UPSTREAM)

    def resume_slow_replica(self) -> None:
        """Read again."""
        self._resume(_UPSTREAM)

    def pause_full(self) -> None:
        """Stop reading, because the body waits for a replica."""
        self._pause(_FULL)

    def resume_full(self) -> None:
        """Read again."""
        if self._pauses & _FULL:
            self._resume(_FULL)

    def close_when_idle(self) -> None:
        """Close now if no request is in progress (the gateway stops)."""
        if self._exchange is None and self._collecting is None:
            self.transport.close()

    # Ends.

    def _next(self) -> None:
        """Handle the next request of the connection."""
        self.deadline = self.hub.loop.time() + (HEAD_TIMEOUT_S if self._buffer else IDLE_TIMEOUT_S)
        if (self._buffer or self._pauses) and not self._resuming:
            self._resuming = True
            self.hub.loop.call_soon(self._continue)  # not at once: pipelined requests would nest

    def _continue(self) -> None:
        self._resuming = False
        if self._closing or self._exchange is not None or self._collecting is not None:
            return
        self._resume(_PIPELINED)
        data, self._buffer = self._buffer, b""
        if data:
            self._read_head(data)

    def _finish(self) -> None:
        """Close after the last response; unread input is discarded, or the client would not get the response."""
        self._closing = True
        self.deadline = self.hub.loop.time() + LINGER_S
        if self._pauses:
            self._resume(_UPSTREAM | _FULL | _PIPELINED)
        if self._eof or not self.transport.can_write_eof():
            self.transport.close()
        else:
            self.transport.write_eof()

    def _pause(self, reason: int) -> None:
        if not self._pauses and not self._lost:
            self.transport.pause_reading()
        self._pauses |= reason

    def _resume(self, reason: int) -> None:
        if not self._pauses:
            return
        self._pauses &= ~reason
        if not self._pauses and not self._lost and not self.transport.is_closing():
            self.transport.resume_reading()
