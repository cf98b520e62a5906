"""Requests to the control plane that survive its restarts."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from gpupool.client.endpoint import Endpoint, TlsEndpoint, UnixEndpoint
from gpupool.domain.errors import ErrorCode, GpupoolError

RETRY_S = 30.0
MAX_BODY_BYTES = 8 * 1024 * 1024
_CONNECT_S = 10.0
_ANSWER_S = 90.0  # the server answers a wait within 60 s
_SILENCE_S = 45.0  # a live stream says something every 15 s
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_LOCAL = "http://gpupool"

M = TypeVar("M", bound=BaseModel)
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
        self._deadline = time.monotonic() + limit_s
        self._pause_s = _FIRST_PAUSE_S

    def wait(self) -> bool:
        """Sleep a little longer each time; False, at once, when the time is used up."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, self._pause_s * random.uniform(0.5, 1.0)))  # noqa: S311 - spreads clients, no secret
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return True


class Connection:
    """A pool's HTTP API; safe to use from several threads."""

    def __init__(self, endpoint: Endpoint, retry_s: float = RETRY_S) -> None:
        self.endpoint = endpoint
        self._retry_s = retry_s
        self._met = False  # whether this pool has ever answered us
        self._folder: int | None = None
        self._http = self._open()

    def _open(self) -> httpx2.Client:
        timeout = httpx2.Timeout(_ANSWER_S, connect=_CONNECT_S)
        if isinstance(self.endpoint, UnixEndpoint):
            path, self._folder = self.endpoint.connectable()
            transport = httpx2.HTTPTransport(uds=path)
            return httpx2.Client(transport=transport, base_url=_LOCAL, timeout=timeout, trust_env=False)
        headers = {"authorization": f"Bearer {self.endpoint.token}"}
        return httpx2.Client(
            verify=self.endpoint.context(),
            base_url=self.endpoint.url,
            headers=headers,
            timeout=timeout,
            trust_env=False,
        )

    def close(self) -> None:
        """Let go of all connections."""
        self._http.close()
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def ask(self, call: Call, model: type[M]) -> M:
        """The answer to a request as ``model``. Raises ``GpupoolError`` (POOL_UNREACHABLE when none came)."""
        return _parsed(self.send(call), model)

    def send(self, call: Call) -> httpx2.Response:
        """A successful answer; asks again while the control plane restarts, where that is harmless."""
        body = _body(call)
        patience = self._patience()
        while True:
            try:
                response = self._http.request(call.method, call.path, params=call.params, content=body, headers=_TYPE)
            except httpx2.TransportError as error:
                if _may_repeat(call, error) and patience.wait():
                    continue
                raise self._unreachable(error) from error
            self._met = True
            problem = _problem(response)
            if problem is None:
                return response
            if not (call.again and problem.code is ErrorCode.POOL_UNREACHABLE and patience.wait()):
                raise problem

    @contextlib.contextmanager
    def stream(self, path: str, params: Params, last_id: str) -> Iterator[Iterator[httpx2.ServerSentEvent]]:
        """One connection's server-sent events; raises as ``send`` does when it is refused."""
        headers = {"accept": "text/event-stream", **({"last-event-id": last_id} if last_id else {})}
        timeout = httpx2.Timeout(_SILENCE_S, connect=_CONNECT_S)
        with self._http.stream("GET", path, params=params, headers=headers, timeout=timeout) as response:
            self._met = True
            if response.is_error:
                response.read()
            problem = _problem(response)
            if problem is not None:
                raise problem
            yield iter(httpx2.EventSource(response))

    def resumed(self, path: str, params: Params, last_id: str = "") -> Iterator[httpx2.ServerSentEvent]:
        """Server-sent events across restarts of the control plane, each once, until an ``end`` event or for ever."""
        patience, passing = self._patience(), {ErrorCode.POOL_UNREACHABLE}
        while True:
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
                if not patience.wait():
                    raise self._unreachable(error) from error
            except GpupoolError as error:
                if error.code not in passing or not patience.wait():
                    raise
            else:
                patience.wait()  # the server closed an unfinished stream: it is about to restart

    def _patience(self) -> Patience:
        """None for a pool that was never seen and has no socket: it is not restarting, it is not there."""
        absent = isinstance(self.endpoint, UnixEndpoint) and not self._met and not self.endpoint.present
        return Patience(0.0 if absent else self._retry_s)

    def _unreachable(self, error: Exception) -> GpupoolError:
        if isinstance(self.endpoint, TlsEndpoint):
            host, port = self.endpoint.address
            return GpupoolError(
                ErrorCode.POOL_UNREACHABLE,
                f"The pool at {host}:{port} does not answer: {str(error) or type(error).__name__}.",
                "See that it is up, the address right, and its certificate trusted (GPUPOOL_CA).",
            )
        return GpupoolError(
            ErrorCode.POOL_UNREACHABLE,
            f"The pool at {self.endpoint.path} does not answer.",
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
        raise GpupoolError(
            ErrorCode.INTERNAL, "The server's answer is not one this client knows.", "Bring both to the same version."
        ) from error
