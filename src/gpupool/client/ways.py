"""The ways to a pool over the network: the address that was logged in to, and the heads that were learnt there.

One of them is used, the one that answered last. Where it cannot be reached, or says that it only waits, all are asked
at once who leads (``/v1/health``, without a token, over connections that show the right certificate), and the one that
leads in the newest term is used from then on.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpupool.client import heads
from gpupool.client.elsewhere import NotDone
from gpupool.client.endpoint import TlsEndpoint
from gpupool.client.heads import Learnt
from gpupool.domain.errors import GpupoolError

CONNECT_S = 4.0  # with another way to try; TLS included
NEWER_S = 0.5  # how long after the first that leads another may still say that it does, in a newer term
TAKEOVER_S = 30.0  # how long one that waits may take to lead
NOBODY_S = 6.0  # how long none of them may answer: one that is about to lead serves nobody for a moment
LOOK_EVERY_S = 1.0
LEARN_S = 2.0
SILENT_S = 15  # a machine that is gone says nothing: the kernel gives up a connection after so long
_SERVICE_UNAVAILABLE = 503
_HEALTH_LIMIT_BYTES = 1 << 16
SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 3),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000),
)
"""For connections that can be made anew to another head: the kernel notices when nobody is there any more."""


class Ways:
    """All ways to one pool; safe to use from several threads. ``current`` is the one in use."""

    def __init__(self, endpoint: TlsEndpoint) -> None:
        self._own = endpoint
        self._path = heads.kept_for(endpoint)
        kept = heads.read(self._path)
        self._learns = endpoint.login or kept is not None
        self.learnt = kept or Learnt()
        self._ways = self._all()
        self._contexts: dict[TlsEndpoint, ssl.SSLContext] = {}
        self._busy = threading.Lock()
        self._in_doubt = False
        self._waiting = False  # whether one of them said, when they were asked last, that it waits to lead
        last = (way for way in reversed(self._ways) if way.url == self.learnt.last)
        self.current = next(last, self._ways[0])

    @property
    def several(self) -> bool:
        """Whether there is another way than the one that was named."""
        return len(self._ways) > 1

    def _all(self) -> list[TlsEndpoint]:
        own, found = self._own, []
        for head in self.learnt.heads:
            way = TlsEndpoint(head.url, own.token, certificate=head.certificate)
            if own.fingerprint is not None and heads.kept_for(replace(way, url=own.url)) == self._path:
                own = replace(own, fingerprint=None, certificate=head.certificate)
            found.append(way)
        return [own, *(way for way in found if way.url != own.url or own.certificate not in {None, way.certificate})]

    def context(self, way: TlsEndpoint) -> ssl.SSLContext:
        """How to check the server there. Raises ``GpupoolError``."""
        if way not in self._contexts:
            self._contexts[way] = way.context()
        return self._contexts[way]

    # Connections

    def reach(self, timeout_s: float, say: Callable[[str], None] | None = None) -> HeadConnection:
        """A connection to the head that leads; where one waits to, it gets a little time. Raises ``OSError``.

        ``say`` hears of it when nobody leads. ``timeout_s`` is for what is asked over the connection, too.
        """
        problem: Exception | None = None
        if not self._in_doubt:
            try:
                return self._dialled(self.current, timeout_s)
            except (OSError, GpupoolError) as error:
                if not self.several:
                    raise
                problem = error
        deadline = time.monotonic() + min(timeout_s, TAKEOVER_S)
        answers_by = time.monotonic() + NOBODY_S
        while True:
            if (found := self.search()) is not None:
                try:
                    return self._dialled(found, timeout_s)
                except (OSError, GpupoolError) as error:
                    problem = error
            if self._waiting:
                answers_by, problem = deadline, _nobody_leads()
            if time.monotonic() > min(answers_by, deadline):
                raise problem or _nobody_leads()
            if found is None and self._waiting and say is not None:
                say("no head of the pool leads at present; waiting for one")
                say = None
            time.sleep(LOOK_EVERY_S)

    def _dialled(self, way: TlsEndpoint, timeout_s: float) -> HeadConnection:
        """Connected, the certificate checked. Raises ``OSError``, ``GpupoolError``."""
        connection = HeadConnection(self, way, min(timeout_s, CONNECT_S) if self.several else timeout_s)
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        connection.timeout = timeout_s
        connection.sock.settimeout(timeout_s)
        if self.several:
            watch(connection.sock)
        return connection

    # Who leads

    def doubt(self, way: TlsEndpoint) -> None:
        """Look around before this one is used again."""
        self._in_doubt = self._in_doubt or (self.several and way == self.current)

    def search(self, instead_of: TlsEndpoint | None = None) -> TlsEndpoint | None:
        """Ask all of them who leads, and use that one; None when nobody says so within a few seconds.

        ``instead_of`` is the way that was tried: nobody is asked where another thread has found another meanwhile.
        """
        with self._busy:
            if instead_of is not None and self.current != instead_of:
                return self.current
            said = self._ask_all()
            self._waiting = any(health.get("status") == "waiting" for health in said.values())
            terms = {way: _term(health) for way, health in said.items() if health.get("status") == "ok"}
            if not terms:
                return None
            newest = max(terms.values())
            self.current = next(way for way in self._ways if terms.get(way) == newest)
            self._in_doubt = False
            return self.current

    def _ask_all(self) -> dict[TlsEndpoint, Mapping[str, Any]]:
        answers: queue.SimpleQueue[tuple[TlsEndpoint, Mapping[str, Any]]] = queue.SimpleQueue()
        for way in self._ways:
            threading.Thread(target=lambda way=way: answers.put((way, self._health(way))), daemon=True).start()
        said: dict[TlsEndpoint, Mapping[str, Any]] = {}
        until = time.monotonic() + CONNECT_S
        while len(said) < len(self._ways) and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                way, said[way] = answers.get(timeout=left)
                if said[way].get("status") == "ok":
                    until = min(until, time.monotonic() + NEWER_S)
        return said

    def _health(self, way: TlsEndpoint) -> Mapping[str, Any]:
        """What one says of itself; nothing when it does not answer, or is not who it should be."""
        host, port = way.address
        try:
            context = self.context(way)
            connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=context)
            with contextlib.closing(connection):
                return asked(connection, "/v1/health", {}, _HEALTH_LIMIT_BYTES)
        except (OSError, GpupoolError, http.client.HTTPException, ValueError):
            return {}

    def served(self, way: TlsEndpoint) -> None:
        """This one did what it was asked: the next command begins with it."""
        if self.several and way.url != self.learnt.last:
            self._take(replace(self.learnt, last=way.url))

    # Which heads there are

    @property
    def asks(self) -> bool:
        """Whether it is time to ask which heads there are."""
        return self._learns and bool(self._own.token) and not self.learnt.fresh

    def learn(self, ask: Callable[[], object]) -> None:
        """Ask one that has just answered as the pool does which heads there are; nothing comes of a failure."""
        self.learnt = replace(self.learnt, asked_at=time.time())  # once, whatever comes of it
        try:
            self.take(ask())
        except (OSError, http.client.HTTPException, ValueError):
            self._take(self.learnt)

    def list_from(self, connection: http.client.HTTPConnection) -> object:
        """The answer of the server at the other end. Raises ``OSError``, ``HTTPException``, ``ValueError``."""
        connection.sock.settimeout(LEARN_S)
        headers = {"Authorization": f"Bearer {self._own.token}"}
        return asked(connection, heads.TARGET, headers, heads.ANSWER_LIMIT_BYTES)

    def take(self, answer: object) -> None:
        """Keep a list that one of them gave. Raises ``ValueError`` for what is none."""
        self._take(replace(self.learnt, heads=heads.heads_of(answer), asked_at=time.time()))

    def _take(self, learnt: Learnt) -> None:
        self.learnt = learnt
        self._ways = self._all()
        if self._learns:
            heads.keep(self._path, learnt)


class HeadConnection(http.client.HTTPSConnection):
    """To one head. Where there are others, ``NotDone`` is raised for the answer of one that does not lead."""

    def __init__(self, ways: Ways, way: TlsEndpoint, timeout_s: float) -> None:
        host, port = way.address
        super().__init__(host, port, timeout=timeout_s, context=ways.context(way))
        self._ways = ways
        self.way = way
        self._asks_only = False

    def putrequest(
        self,
        method: str,
        url: str,
        skip_host: bool = False,
        skip_accept_encoding: bool = False,
    ) -> None:
        """As it is there."""
        self._asks_only = method == "GET"
        super().putrequest(method, url, skip_host, skip_accept_encoding)

    def getresponse(self) -> http.client.HTTPResponse:
        """Raises ``NotDone``, ``OSError`` and ``HTTPException``."""
        response = super().getresponse()
        if response.status != _SERVICE_UNAVAILABLE:
            self._ways.served(self.way)
        elif self._ways.several and self._is_turned_away(response):
            self.close()
            raise NotDone("that head of the pool does not lead")
        return response

    def _is_turned_away(self, response: http.client.HTTPResponse) -> bool:
        """Whether nothing was done; one that led until now may have done a part of what it was asked."""
        if only_waits(response.status, response.getheader):
            self._ways.doubt(self.way)
            return True
        return self._ways.search(self.way) not in {None, self.way} and self._asks_only


def watch(sock: socket.socket) -> None:
    """Have the kernel notice when nobody is there any more."""
    with contextlib.suppress(OSError):
        for option in SOCKET_OPTIONS:
            sock.setsockopt(*option)


def only_waits(status: int, header: Callable[[str], str | None]) -> bool:
    """Whether an answer is that of a control plane that waits to lead: it did nothing of what it was asked."""
    return status == _SERVICE_UNAVAILABLE and header("retry-after") is not None


def _nobody_leads() -> OSError:
    return ConnectionRefusedError("no head of the pool leads at present")


def _term(health: Mapping[str, Any]) -> int:
    term = health.get("term")
    return term if isinstance(term, int) else 0


def asked(
    connection: http.client.HTTPConnection, target: str, headers: dict[str, str], limit: int
) -> Mapping[str, Any]:
    """The JSON object at an address. Raises ``OSError``, ``HTTPException``, ``ValueError``."""
    connection.request("GET", target, headers=headers)
    response = connection.getresponse()
    answer = json.loads(response.read(limit))
    if response.status != http.client.OK or not isinstance(answer, dict):
        raise ValueError(f"status {response.status}")
    return answer
