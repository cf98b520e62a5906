"""Requests to the control plane that survive its restarts."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from gpupool.client import heads
from gpupool.client.endpoint import Endpoint, TlsEndpoint, UnixEndpoint
from gpupool.client.unixhttp import UnixConnection
from gpupool.client.ways import CONNECT_S, LEARN_S, SOCKET_OPTIONS, Ways, only_waits
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.logrecords import Decoder, Stretch

RETRY_S = 30.0
MAX_BODY_BYTES = 8 * 1024 * 1024
_CONNECT_S = 10.0
_ANSWER_S = 90.0  # the server answers a wait within 60 s
_SILENCE_S = 45.0  # a live stream says something every 15 s
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_LOCAL = "http://gpupool"

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One request. ``again``: doing it twice does no harm, so it is repeated when its answer is lost."""

    method: str
    path: str
    params: Params | None = None
    json: Mapping[str, Any] | None = None
    again: bool = False


class Patience:
    """How long to go on asking a control plane that is not there: it may be restarting."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._pause_s = _FIRST_PAUSE_S
        self._extended = False

    def extend(self) -> None:
        """Begin anew, with twice the time, but once only: there is a control plane, and it has yet to meet a node."""
        if not self._extended:
            self._extended, self._deadline = True, time.monotonic() + 2 * self._limit_s

    def wait(self) -> bool:
        """Sleep a little longer each time; False, at once, when the time is used up."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, self._pause_s * random.uniform(0.5, 1.0)))  # noqa: S311 - spreads clients, no secret
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return True


class Connection:
    """A pool's HTTP API; safe to use from several threads. Over the network, of whichever known head leads."""

    def __init__(self, endpoint: Endpoint, retry_s: float = RETRY_S) -> None:
        self._named = endpoint
        self._ways = Ways(endpoint) if isinstance(endpoint, TlsEndpoint) else None
        self._retry_s = retry_s
        self._met = False  # whether this pool has ever answered us
        self._served = False  # whether it has ever done what it was asked
        self._folder: int | None = None
        self._left: list[httpx2.Client] = []  # of heads that led before; threads may still be in them
        self._changing = threading.Lock()
        self._http, self._to = self._open()

    @property
    def endpoint(self) -> Endpoint:
        """Where the pool is: over the network, the head that is used at present."""
        return self._named if self._ways is None else self._ways.current

    def _open(self) -> tuple[httpx2.Client, tuple[Endpoint, bool]]:
        """A client, and to whom: an endpoint, and whether there are others."""
        timeout = httpx2.Timeout(_ANSWER_S, connect=_CONNECT_S)
        if self._ways is None:
            assert isinstance(self._named, UnixEndpoint)  # noqa: S101 - there are ways to all others
            path, self._folder = self._named.connectable()
            transport = httpx2.HTTPTransport(uds=path)
            client = httpx2.Client(transport=transport, base_url=_LOCAL, timeout=timeout, trust_env=False)
            return client, (self._named, False)
        several, options = self._ways.several, list(SOCKET_OPTIONS)
        way, context = self._trusted()
        made = httpx2.HTTPTransport(verify=context, socket_options=options if several else None, trust_env=False)
        headers = {"authorization": f"Bearer {way.token}"}
        timeout = httpx2.Timeout(_ANSWER_S, connect=CONNECT_S if several else _CONNECT_S)
        client = httpx2.Client(transport=made, base_url=way.url, headers=headers, timeout=timeout, trust_env=False)
        return client, (way, several)

    def _trusted(self) -> tuple[TlsEndpoint, ssl.SSLContext]:
        """The way in use, and how its server is checked; where a fingerprint is all that is known, it is asked."""
        assert self._ways is not None  # noqa: S101 - only called for a pool over the network, which has ways
        way = self._ways.current
        try:
            return way, self._ways.context(way)
        except GpupoolError as error:
            if error.code is not ErrorCode.POOL_UNREACHABLE or not self._look(way):
                raise
        return self._ways.current, self._ways.context(self._ways.current)

    def _client(self) -> httpx2.Client:
        """To the head that is used at present."""
        with self._changing:
            if self._ways is not None and self._to != (self._ways.current, self._ways.several):
                self._left.append(self._http)
                self._http, self._to = self._open()
            return self._http

    def _look(self, tried: Endpoint) -> bool:
        """Whether another head than the one that was tried is found to lead; it is used from then on."""
        if self._ways is None or not self._ways.several or not isinstance(tried, TlsEndpoint):
            return False
        return self._ways.search(tried) not in {None, tried}

    def _served_by(self, way: Endpoint) -> None:
        self._served = True
        if self._ways is not None and isinstance(way, TlsEndpoint):
            self._ways.served(way)
            if self._ways.asks:
                self._ways.learn(self._list)

    def _list(self) -> object:
        try:
            response = self._client().get(heads.TARGET, timeout=LEARN_S)
        except httpx2.TransportError as error:
            raise ConnectionError(str(error)) from error
        return response.json() if response.is_success else None

    def close(self) -> None:
        """Let go of all connections."""
        for client in (*self._left, self._http):
            client.close()
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """One of the standard library, for what is sent or read piece by piece. Raises ``OSError``."""
        if self._ways is not None:
            return self._ways.reach(timeout_s)
        assert isinstance(self._named, UnixEndpoint)  # noqa: S101 - whatever has no ways is a socket
        return UnixConnection(self._named.path, timeout_s)

    @property
    def headers(self) -> dict[str, str]:
        """What every request on such a connection carries."""
        return {} if self._ways is None else {"Authorization": f"Bearer {self._ways.current.token}"}

    def dialled(self, dial: Callable[[Endpoint], T]) -> T:
        """What ``dial`` makes of the endpoint; of another head's where that one cannot be reached, or only waits."""
        tried = self.endpoint
        try:
            return dial(tried)
        except GpupoolError as error:
            if error.code not in {ErrorCode.POOL_UNREACHABLE, ErrorCode.NOT_LEADING} or not self._look(tried):
                raise
        return dial(self.endpoint)

    def ask(self, call: Call, model: type[M]) -> M:
        """The answer to a request as ``model``. Raises ``GpupoolError`` (POOL_UNREACHABLE when none came)."""
        return _parsed(self.send(call), model)

    def send(self, call: Call) -> httpx2.Response:
        """A successful answer; asks again while the control plane restarts, where that is harmless."""
        body = _body(call)
        patience = self._patience()
        while True:
            way = self.endpoint
            try:
                response = self._client().request(
                    call.method, call.path, params=call.params, content=body, headers=_TYPE
                )
            except httpx2.TransportError as error:
                if _may_repeat(call, error) and (self._look(way) or patience.wait()):
                    continue
                raise self._unreachable(error) from error
            self._met = True
            problem = _problem(response)
            if problem is None:
                self._served_by(way)
                return response
            if problem.code not in self._passing() or not self._may_ask_again(call, response):
                raise problem
            if not (self._look(way) or patience.wait()):
                raise problem

    def _may_ask_again(self, call: Call, response: httpx2.Response) -> bool:
        """Whether nothing was done, or twice does no harm."""
        several = self._ways is not None and self._ways.several
        return call.again or (several and only_waits(response.status_code, response.headers.get))

    @contextlib.contextmanager
    def stream(self, path: str, params: Params, last_id: str) -> Iterator[Iterator[httpx2.ServerSentEvent]]:
        """One connection's server-sent events; raises as ``send`` does when it is refused."""
        headers = {"accept": "text/event-stream", **({"last-event-id": last_id} if last_id else {})}
        timeout = httpx2.Timeout(_SILENCE_S, connect=_CONNECT_S)
        with self._client().stream("GET", path, params=params, headers=headers, timeout=timeout) as response:
            self._met = True
            if response.is_error:
                response.read()
            problem = _problem(response)
            if problem is not None:
                raise problem
            yield iter(httpx2.EventSource(response))

    def _passing(self) -> set[ErrorCode]:
        """What passes: the control plane or its database comes back, and who led before leads again."""
        others = self._ways is not None and self._ways.several
        turn = {ErrorCode.NOT_LEADING} if self._served or others else set()
        return {ErrorCode.POOL_UNREACHABLE, ErrorCode.DATABASE_UNREACHABLE} | turn

    def resumed(self, path: str, params: Params, last_id: str = "") -> Iterator[httpx2.ServerSentEvent]:
        """Server-sent events across restarts of the control plane, each once, until an ``end`` event or for ever."""
        patience, passing = self._patience(), self._passing()
        while True:
            way = self.endpoint
            try:
                with self.stream(path, params, last_id) as messages:
                    passing.add(ErrorCode.NODE_UNREACHABLE)  # from now on: a new control plane has yet to meet the node
                    for message in messages:
                        patience = self._patience()
                        last_id = message.id or last_id
                        yield message
                        if message.event == "end":
                            return
            except httpx2.TransportError as error:
                if not (self._look(way) or patience.wait()):
                    raise self._unreachable(error) from error
            except GpupoolError as error:
                if error.code not in passing or not self._outlasts(error, way, patience):
                    raise
            else:
                patience.wait()  # the server closed an unfinished stream: it is about to restart

    def _outlasts(self, error: GpupoolError, way: Endpoint, patience: Patience) -> bool:
        """Wait a little for what passes; False when the time is used up."""
        if error.code is ErrorCode.NODE_UNREACHABLE:
            patience.extend()
            return patience.wait()
        return self._look(way) or patience.wait()

    def whole_log(self, path: str, query: Params) -> Iterator[Stretch]:
        """All of a log as it is now, taken up again where the answer broke off."""
        patience, passing = self._patience(), self._passing()
        while True:
            decoder, broken, way = Decoder(), self._unreachable(ConnectionError("the answer broke off")), self.endpoint
            try:
                for stretch in self._stretches(path, query, decoder):
                    passing.add(ErrorCode.NODE_UNREACHABLE)  # from now on: a new control plane has yet to meet the node
                    patience = self._patience()
                    query = {**query, "cursor": stretch.cursor}
                    yield stretch
            except httpx2.TransportError as error:
                broken = self._unreachable(error)
            except GpupoolError as error:
                if error.code not in passing:
                    raise
                broken = error
            if decoder.whole:
                return
            if not self._outlasts(broken, way, patience):
                raise broken

    def _stretches(self, path: str, query: Params, decoder: Decoder) -> Iterator[Stretch]:
        timeout = httpx2.Timeout(_SILENCE_S, connect=_CONNECT_S)
        headers = {"accept": "application/octet-stream"}
        with self._client().stream("GET", path, params=query, headers=headers, timeout=timeout) as response:
            self._met = True
            if response.is_error:
                response.read()
            problem = _problem(response)
            if problem is not None:
                raise problem
            try:
                for piece in response.iter_raw():
                    yield from decoder.feed(piece)
            except ValueError as error:
                raise _strange() from error

    def _patience(self) -> Patience:
        """None for a pool that was never seen and has no socket: it is not restarting, it is not there."""
        absent = isinstance(self._named, UnixEndpoint) and not self._met and not self._named.present
        return Patience(0.0 if absent else self._retry_s)

    def _unreachable(self, error: Exception) -> GpupoolError:
        endpoint = self.endpoint
        if isinstance(endpoint, TlsEndpoint):
            host, port = endpoint.address
            return GpupoolError(
                ErrorCode.POOL_UNREACHABLE,
                f"The pool at {host}:{port} does not answer: {str(error) or type(error).__name__}.",
                "See that it is up, the address right, and its certificate trusted (GPUPOOL_CA).",
            )
        return GpupoolError(
            ErrorCode.POOL_UNREACHABLE,
            f"The pool at {endpoint.path} does not answer.",
            "Look with 'gpupool status'; start it with 'gpupool up --background'.",
        )


_TYPE = {"content-type": "application/json"}


def _body(call: Call) -> bytes | None:
    if call.json is None:
        return None
    import json

    body = json.dumps(call.json).encode()
    if len(body) > MAX_BODY_BYTES:
        raise GpupoolError(
            ErrorCode.TOO_LARGE, "The request is larger than 8 MiB.", "Put large data in files that the program reads."
        )
    return body


def _may_repeat(call: Call, error: httpx2.TransportError) -> bool:
    """A request that never left may always be repeated, another only where twice does no harm."""
    return call.again or isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)


def _problem(response: httpx2.Response) -> GpupoolError | None:
    if response.is_success:
        return None
    try:
        return GpupoolError.from_dict(response.json()["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        code = ErrorCode.POOL_UNREACHABLE if response.status_code == 503 else ErrorCode.INTERNAL
        return GpupoolError(code, f"The server answered {response.status_code} without saying why.", "Is it a pool?")


def _parsed(response: httpx2.Response, model: type[M]) -> M:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        raise _strange() from error


def _strange() -> GpupoolError:
    return GpupoolError(
        ErrorCode.INTERNAL, "The server's answer is not one this client knows.", "Bring both to the same version."
    )
