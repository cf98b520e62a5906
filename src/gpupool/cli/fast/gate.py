"""The way to the pool: one small interface over the unix socket, and over the network through the client package."""

from __future__ import annotations

from gpupool.cli.fast.http import Exchange, call, connect
from gpupool.client.locate import Location, Remote, find_pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from http.client import HTTPConnection
    from typing import Protocol

    from gpupool.cli.fast.http import Answer

    class Pending(Protocol):
        """A request under way; ``receive`` is called when its descriptor is readable."""

        def fileno(self) -> int:
            """The descriptor to poll for reading."""

        def close(self) -> None:
            """Stop listening for the answer."""

        def receive(self) -> Answer | None:
            """The answer when it is whole; raises ``OSError``."""

    class Gate(Protocol):
        """How a command that waits and attaches reaches its pool; every method raises ``OSError`` when it cannot.

        ``direct``: shepherds are reached by their own sockets, not through the pool.
        """

        direct: bool

        @property
        def url(self) -> str:
            """Where its API is on the network; empty for a pool on this machine."""

        @property
        def returns_s(self) -> float:
            """How long a program is to wait for us where the way to it through the pool breaks."""

        def call(self, method: str, target: str, body: object = None, timeout_s: float = 30.0) -> Answer:
            """Ask and wait for the answer."""

        def open(self, method: str, target: str, body: object = None) -> Pending:
            """Ask; the answer is read when its descriptor is readable."""

        def attach(self, workload: str, index: int, path: str) -> socket:
            """A stream of frames to the program's shepherd."""

        def relay(self, workload: str, index: int) -> socket:
            """The same through the pool, for a program on another machine than the pool's own."""

        def connection(self, timeout_s: float) -> HTTPConnection:
            """A fresh connection of the standard library, for streams."""

        @property
        def headers(self) -> dict[str, str]:
            """What requests on such a connection carry."""


RETURNS_S = 60.0


class LocalGate:
    """A pool on this machine."""

    direct = True
    url = ""
    returns_s = RETURNS_S

    def __init__(self, api_socket: str) -> None:
        self.api_socket = api_socket

    def call(self, method: str, target: str, body: object = None, timeout_s: float = 30.0) -> Answer:
        """Ask and wait for the answer; raises ``OSError``."""
        return call(self.api_socket, method, target, body, timeout_s)

    def open(self, method: str, target: str, body: object = None) -> Exchange:
        """Ask; raises ``OSError``."""
        return Exchange(self.api_socket, method, target, body)

    def attach(self, workload: str, index: int, path: str) -> socket:
        """Connect straight to the shepherd: the control plane may go away meanwhile."""
        del workload, index
        return connect(path)

    def relay(self, workload: str, index: int) -> socket:
        """Through the control plane: there is no way to that machine but its own."""
        from gpupool.cli.remote import relay_here

        return relay_here(self.api_socket, workload, index)

    def connection(self, timeout_s: float) -> HTTPConnection:
        """A fresh connection, for streams."""
        from gpupool.client.unixhttp import UnixConnection

        return UnixConnection(self.api_socket, timeout_s)

    @property
    def headers(self) -> dict[str, str]:
        """Nothing: the pool knows the caller by the socket."""
        return {}


def find_gate(*, start: bool) -> Gate:
    """The pool of this user; one is started when there is none and ``start`` is true.

    Raises ``GpupoolError`` (POOL_UNREACHABLE, POOL_START_FAILED and what ``find_pool`` raises).
    """
    place = find_pool()
    if isinstance(place, Remote):
        from gpupool.cli.remote import RemoteGate

        return RemoteGate(place)
    if place is None or not answers(place):
        from gpupool.cli.starting import await_answer, start_for_user

        place = start_for_user() if start else await_answer(place)
    return LocalGate(place.api_socket)


def answers(place: Location) -> bool:
    """Whether somebody listens on the pool's socket."""
    try:
        connect(place.api_socket).close()
    except OSError:
        return False
    return True


def refusal(answer: Answer) -> Exception:
    """The ``GpupoolError`` that an answer which is not ``ok`` carries."""
    from gpupool.domain.errors import ErrorCode, GpupoolError

    body = answer.body.get("error") if isinstance(answer.body, dict) else None
    if isinstance(body, dict):
        return GpupoolError.from_dict(body)
    return GpupoolError(ErrorCode.INTERNAL, f"The pool answered with status {answer.status}.", "See 'gpupool doctor'.")
