"""Find the pool of this user, start it if needed, and connect to it by its unix socket."""

from __future__ import annotations

from gpupool.client.discovery import Location, Remote, find_pool
from gpupool.client.transport.http import REATTACH_TIMEOUT_S, call, connect, send_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from http.client import HTTPConnection
    from typing import TypeAlias

    from gpupool.cli.transport.remote import RemoteExchange, RemoteTransport
    from gpupool.client.transport.http import Answer, HttpExchange
    from gpupool.daemon.process.progress import StartWatch

    PoolTransport: TypeAlias = "LocalTransport | RemoteTransport"
    PendingAnswer: TypeAlias = HttpExchange | RemoteExchange

STARTING_MESSAGE = "the pool continues to start; 'gpupool status' shows its progress, 'gpupool down' stops it"


class LocalTransport:
    """Connections of a command to a pool on this machine. ``RemoteTransport`` has the same methods.

    ``direct``: the command connects to shepherds by their own sockets, not through the pool. ``url`` is the URL of the
    API, empty for a pool on this machine.
    """

    direct = True
    url = ""
    reattach_timeout_s = REATTACH_TIMEOUT_S

    def __init__(self, place: Location) -> None:
        self._place = place
        self.api_socket = place.api_socket

    def call(self, method: str, target: str, body: object = None, timeout_s: float = 30.0) -> Answer:
        """Send a request and wait for the answer. Raises ``OSError``."""
        return call(self.api_socket, method, target, body, timeout_s)

    def open(self, method: str, target: str, body: object = None) -> HttpExchange:
        """Send a request and return at once. Raises ``OSError``."""
        return send_request(self.api_socket, method, target, body)

    def attach(self, workload: str, index: int, path: str) -> socket:
        """Connect directly to the shepherd, so that the control plane may restart meanwhile."""
        del workload, index
        return connect(path)

    def relay(self, workload: str, index: int) -> socket:
        """Connect through the control plane, to a program on another machine."""
        from gpupool.cli.transport.remote import relay_local

        return relay_local(self.api_socket, workload, index)

    def connection(self, timeout_s: float) -> HTTPConnection:
        """Return a new connection, for streams."""
        from gpupool.client.transport.requests import UnixConnection

        return UnixConnection(self.api_socket, timeout_s)

    @property
    def headers(self) -> dict[str, str]:
        """Return no headers: the pool identifies the caller by the socket."""
        return {}

    def watch(self) -> StartWatch:
        """Return a watch on the pool's processes."""
        return _start_watch(self._place)


def find_transport(*, start: bool) -> PoolTransport:
    """Return a transport to this user's pool; with ``start``, a pool is started when there is none.

    Raises ``GpupoolError`` (POOL_UNREACHABLE, POOL_START_FAILED and the errors of ``find_pool``).
    """
    place = find_pool()
    if isinstance(place, Remote):
        from gpupool.cli.transport.remote import RemoteTransport

        return RemoteTransport(place)
    if place is None or not _is_listening(place):
        place = _start_pool() if start else await_answer(place)
    return LocalTransport(place)


def _is_listening(place: Location) -> bool:
    try:
        connect(place.api_socket).close()
    except OSError:
        return False
    return True


def _start_pool() -> Location:
    """Return a pool that answers; start one if necessary and say so on stderr.

    Raises ``GpupoolError`` (POOL_UNREACHABLE, POOL_START_FAILED).
    """
    from gpupool.cli.terminal import say
    from gpupool.daemon.process.launch import ensure_pool

    try:
        return ensure_pool(lambda text: say(text[:1].lower() + text[1:].rstrip(".")), say)
    except KeyboardInterrupt:
        say(STARTING_MESSAGE)
        raise


def await_answer(place: Location | None) -> Location:
    """Return the pool at a place once its control plane answers. Waits as long as the start makes progress.

    Raises ``GpupoolError``: POOL_UNREACHABLE when none runs, POOL_START_FAILED when it does not come back.
    """
    from gpupool.cli.errors import no_pool_error

    if place is None:
        raise no_pool_error()
    from gpupool.daemon.process.ready import await_answer as await_pool

    if not await_pool(place, _start_watch(place)):
        raise no_pool_error()
    return place


def _start_watch(place: Location) -> StartWatch:
    from gpupool.cli.terminal import say
    from gpupool.daemon.process.launch import STALL_S
    from gpupool.daemon.process.progress import StartWatch

    return StartWatch(place, say, STALL_S)
