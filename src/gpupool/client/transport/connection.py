"""Requests to the control plane that are retried while it restarts."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gpupool.client.transport import heads
from gpupool.client.transport.endpoint import Endpoint, TlsEndpoint, UnixEndpoint
from gpupool.client.transport.failover import (
    LEARN_TIMEOUT_S,
    HeadConnection,
    HeadSelector,
    enable_keepalive,
    is_standby_answer,
)
from gpupool.client.transport.http import RATE_LIMIT_DELAY_S, Answer, error_of_answer, is_untrusted, with_query
from gpupool.client.transport.requests import (
    OCTETS,
    StreamEvent,
    UnixConnection,
    ask,
    open_response,
    read_answer,
    read_events,
    read_octets,
)
from gpupool.client.transport.retries import RETRY_TIMEOUT_S, NotLeading, RetryTimer
from gpupool.domain.errors import NO_LEADER_CODES, ErrorCode, GpupoolError
from gpupool.domain.protocol.log_records import LogBatch, LogDecoder

MAX_BODY_BYTES = 8 * 1024 * 1024
_CONNECT_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 90.0  # the server answers each wait within 60 s
_SILENCE_TIMEOUT_S = 45.0  # a live stream sends at least a comment every 15 s
MAX_IDLE_CONNECTIONS = 8
_BROKEN = (OSError, http.client.HTTPException)
_TEMPORARY = frozenset(
    {ErrorCode.POOL_UNREACHABLE, ErrorCode.POOL_STARTING, ErrorCode.DATABASE_UNREACHABLE, ErrorCode.OVERLOADED}
)
_NOT_EXECUTED = frozenset({ErrorCode.RATE_LIMITED, ErrorCode.POOL_STARTING})
_TRY_OTHER_HEAD = NO_LEADER_CODES | {ErrorCode.POOL_UNREACHABLE}

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request. ``repeatable``: it is sent again when its answer is lost, because repeating it has no effect."""

    method: str
    path: str
    params: Params | None = None
    json: Mapping[str, Any] | None = None
    repeatable: bool = False


class PoolConnection:
    """The HTTP API of a pool, safe to use from several threads. Of several known heads it uses the leader."""

    def __init__(self, endpoint: Endpoint, retry_s: float = RETRY_TIMEOUT_S) -> None:
        self._configured = endpoint
        self._heads = HeadSelector(endpoint) if isinstance(endpoint, TlsEndpoint) else None
        self._retry_s = retry_s
        self._answered = False  # whether this pool has ever answered
        self._served = False  # whether a request has ever succeeded
        self._idle: list[http.client.HTTPConnection] = []  # open connections without a request
        self._changing = threading.Lock()
        if self._heads is not None:
            self._check_certificate(self._heads)

    @property
    def endpoint(self) -> Endpoint:
        """Return the endpoint of the pool: over the network, the head in use."""
        return self._configured if self._heads is None else self._heads.current

    def _check_certificate(self, selector: HeadSelector) -> None:
        """Raise ``GpupoolError`` for a certificate that cannot be used, or has another fingerprint."""
        tried = selector.current
        try:
            selector.context(tried)
        except GpupoolError as error:
            if error.code is not ErrorCode.POOL_UNREACHABLE or not self._switch_head(tried):
                raise

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a new open connection to the head in use. Raises ``OSError``, ``GpupoolError``."""
        connection = self.connection(_CONNECT_TIMEOUT_S)
        if connection.sock is None:
            connection.connect()
        connection.sock.settimeout(timeout_s)
        return connection

    def _take(self) -> http.client.HTTPConnection:
        """Return an idle connection to the head in use, or a new one."""
        while True:
            with self._changing:
                if not self._idle:
                    break
                connection = self._idle.pop()
            moved = isinstance(connection, HeadConnection) and connection.endpoint != self.endpoint
            if not moved and not _is_readable(connection.sock):
                if self._heads is not None and self._heads.has_alternatives:
                    enable_keepalive(connection.sock)
                return connection
            connection.close()
        return self._connect(_ANSWER_TIMEOUT_S)

    def _give_back(self, connection: http.client.HTTPConnection) -> None:
        """Keep a connection open for the next request, if the answer allows it."""
        with self._changing:
            if connection.sock is not None and len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def _switch_head(self, tried: Endpoint) -> bool:
        """Return whether another head than ``tried`` leads; it is used from now on."""
        if self._heads is None or not self._heads.has_alternatives or not isinstance(tried, TlsEndpoint):
            return False
        return self._heads.find_leader(tried) not in {None, tried}

    def _mark_served(self) -> None:
        self._served = True
        if self._heads is not None and self._heads.needs_refresh:
            self._heads.refresh_heads(self._fetch_heads)

    def _fetch_heads(self) -> object:
        with contextlib.closing(self._connect(LEARN_TIMEOUT_S)) as connection:
            return ask(connection, "GET", heads.HEADS_PATH, headers=self.headers, limit=heads.ANSWER_LIMIT_BYTES).body

    def close(self) -> None:
        """Close all idle connections."""
        with self._changing:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Return a connection of the standard library, for streamed data. Raises ``OSError``."""
        if self._heads is not None:
            return self._heads.connect_to_leader(timeout_s)
        assert isinstance(self._configured, UnixEndpoint)  # noqa: S101 - without a HeadSelector it is a socket
        return UnixConnection(self._configured.path, timeout_s)

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of every request on such a connection."""
        return {} if self._heads is None else {"Authorization": f"Bearer {self._heads.current.token}"}

    def with_failover(self, dial: Callable[[Endpoint], T]) -> T:
        """Call ``dial`` with the endpoint.

        Call it again with another head if that one cannot be reached or does not lead.
        """
        tried = self.endpoint
        try:
            return dial(tried)
        except GpupoolError as error:
            if error.code not in _TRY_OTHER_HEAD or not self._switch_head(tried):
                raise
        return dial(self.endpoint)

    def ask(self, call: ApiCall, model: type[M]) -> M:
        """Return the answer to a request as ``model``. Raises ``GpupoolError`` (POOL_UNREACHABLE without an answer)."""
        return _parsed(self.send(call), model)

    def send(self, call: ApiCall) -> Answer:
        """Return a successful answer; repeatable requests are sent again while the control plane restarts."""
        body, target = _body(call), with_query(call.path, call.params)
        timer = self._retry_timer()
        while True:
            endpoint, connection = self.endpoint, None
            try:
                connection = self._take()
                response = open_response(connection, call.method, target, body, _JSON_HEADERS | self.headers)
                answer = read_answer(response)
            except _BROKEN as error:
                if connection is not None:
                    connection.close()
                # without a connection, or with an answer from a standby, the request was not executed
                repeatable = call.repeatable or connection is None or isinstance(error, NotLeading)
                if repeatable and self._reconnect(error, endpoint, timer):
                    continue
                raise self._unreachable(error) from error
            self._give_back(connection)
            self._answered = True
            if answer.ok:
                self._mark_served()
                return answer
            problem = error_of_answer(answer)
            again = problem.code in _NOT_EXECUTED or self._may_ask_again(call, response)
            if not (again and self._wait_to_retry(problem, endpoint, timer)):
                raise problem

    def _reconnect(self, error: Exception, endpoint: Endpoint, timer: RetryTimer) -> bool:
        """Find the leader, or wait before a new connection; return False when that does not help."""
        return self._switch_head(endpoint) or (not is_untrusted(error) and timer.wait())

    def _may_ask_again(self, call: ApiCall, response: http.client.HTTPResponse) -> bool:
        """Return whether the request can be repeated, or the server did not start it."""
        several = self._heads is not None and self._heads.has_alternatives
        return call.repeatable or (several and is_standby_answer(response.status, response.getheader))

    @contextlib.contextmanager
    def _stream(self, path: str, params: Params, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        """Open a long response on its own connection. Raises the errors of ``send`` when it is rejected."""
        with contextlib.closing(self._connect(_SILENCE_TIMEOUT_S)) as connection:
            target = with_query(path, params)
            response = open_response(connection, "GET", target, headers=self.headers | dict(headers))
            self._answered = True
            if response.status != http.client.OK:
                raise error_of_answer(read_answer(response))
            yield response

    def stream_with_retry(self, path: str, params: Params, last_id: str = "") -> Iterator[StreamEvent]:
        """Yield server-sent events across restarts of the control plane, each once, until an ``end`` event."""
        timer, opened = self._retry_timer(), False
        while True:
            endpoint = self.endpoint
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
            try:
                with self._stream(path, params, headers) as response:
                    opened = True
                    for message in read_events(response):
                        timer = self._retry_timer()
                        last_id = message.id or last_id
                        yield message
                        if message.event == "end":
                            return
            except _BROKEN as error:
                if not self._reconnect(error, endpoint, timer):
                    raise self._unreachable(error) from error
            except GpupoolError as error:
                if not self._wait_to_retry(error, endpoint, timer, reopens=opened):
                    raise
            else:
                timer.wait()  # the server closed an unfinished stream because it is about to restart

    def _wait_to_retry(
        self, error: GpupoolError, endpoint: Endpoint, timer: RetryTimer, *, reopens: bool = False
    ) -> bool:
        """Wait before a retry; return False after an error that is not temporary, and when the time is used up.

        ``reopens``: a stream was open before, so the node exists, and a new control plane has yet to meet it.
        """
        if error.code is ErrorCode.NODE_UNREACHABLE and reopens:
            timer.extend()
            return timer.wait()
        if error.code is ErrorCode.RATE_LIMITED:
            return timer.wait(RATE_LIMIT_DELAY_S)
        if error.code is ErrorCode.NOT_LEADING:
            others = self._heads is not None and self._heads.has_alternatives
            if not (self._served or others):
                return timer.wait_for_leader()
        elif error.code not in _TEMPORARY:
            return False
        return self._switch_head(endpoint) or timer.wait()

    def read_log_with_retry(self, path: str, query: Params) -> Iterator[LogBatch]:
        """Yield a whole log as it is now, and continue where the answer was cut off."""
        timer, opened = self._retry_timer(), False
        while True:
            decoder, broken, endpoint = (
                LogDecoder(),
                self._unreachable(ConnectionError("the answer was cut off")),
                self.endpoint,
            )
            try:
                for batch in self._batches(path, query, decoder):
                    opened = True
                    timer = self._retry_timer()
                    query = {**query, "cursor": batch.cursor}
                    yield batch
            except _BROKEN as error:
                broken = self._unreachable(error)
            except GpupoolError as error:
                broken = error
            if decoder.whole:
                return
            if not self._wait_to_retry(broken, endpoint, timer, reopens=opened):
                raise broken

    def _batches(self, path: str, query: Params, decoder: LogDecoder) -> Iterator[LogBatch]:
        with self._stream(path, query, {"Accept": OCTETS}) as response:
            try:
                for piece in read_octets(response):
                    yield from decoder.feed(piece)
            except ValueError as error:
                raise _unknown_answer() from error

    def _retry_timer(self) -> RetryTimer:
        """Return a timer; it is 0 for a pool without a socket that never answered, because it is not restarting."""
        absent = isinstance(self._configured, UnixEndpoint) and not self._answered and not self._configured.present
        return RetryTimer(0.0 if absent else self._retry_s)

    def _unreachable(self, error: Exception) -> GpupoolError:
        endpoint = self.endpoint
        if isinstance(endpoint, TlsEndpoint):
            host, port = endpoint.address
            return GpupoolError(
                ErrorCode.POOL_UNREACHABLE,
                f"The pool at {host}:{port} does not answer: {str(error) or type(error).__name__}.",
                "Check its address, that it is running, and that its certificate is trusted (GPUPOOL_CA).",
            )
        return GpupoolError(
            ErrorCode.POOL_UNREACHABLE,
            f"The pool at {endpoint.path} does not answer.",
            "See 'gpupool status'; start it with 'gpupool up --background'.",
        )


def _is_readable(sock: socket.socket) -> bool:
    """Return whether data or the end of the connection has arrived: an idle connection was then closed by the peer."""
    poller = select.poll()  # select() refuses descriptors from 1024 on
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


_JSON_HEADERS = {"content-type": "application/json"}


def _body(call: ApiCall) -> bytes | None:
    if call.json is None:
        return None
    body = json.dumps(call.json).encode()
    if len(body) > MAX_BODY_BYTES:
        raise GpupoolError(
            ErrorCode.TOO_LARGE,
            "The request is larger than 8 MiB.",
            "Put large data into files that the program reads.",
        )
    return body


def _parsed(answer: Answer, model: type[M]) -> M:
    try:
        return model.model_validate(answer.body)
    except ValidationError as error:
        raise _unknown_answer() from error


def _unknown_answer() -> GpupoolError:
    return GpupoolError(
        ErrorCode.INTERNAL, "The server's answer has an unknown format.", "Install the same version on both."
    )
