"""Select the head of a pool over the network, from the login's address and the learned heads.

The head that answered last is used first. If it cannot be reached, or says that it is a standby, all heads are asked at
once whether they lead (``/v1/health``, without a token, over connections with the right certificate). The head that
leads in the newest term is used from then on.
"""

from __future__ import annotations

import contextlib
import http.client
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpupool.client.transport import heads
from gpupool.client.transport.endpoint import TlsEndpoint
from gpupool.client.transport.heads import HeadList
from gpupool.client.transport.requests import ask
from gpupool.client.transport.retries import NotLeading
from gpupool.domain.errors import GpupoolError

CONNECT_TIMEOUT_S = 4.0  # if there is another endpoint; TLS included
NEWER_TERM_WAIT_S = 0.5  # after the first leader's answer, for a leader in a newer term
TAKEOVER_TIMEOUT_S = 30.0  # how long a standby may take to become the leader
NO_ANSWER_TIMEOUT_S = 6.0  # a head that becomes the leader does not answer for a moment
SEARCH_INTERVAL_S = 1.0
LEARN_TIMEOUT_S = 2.0
DEAD_PEER_TIMEOUT_S = 15  # the kernel closes connections to a silent peer after this time
_SERVICE_UNAVAILABLE = 503
_HEALTH_LIMIT_BYTES = 1 << 16
SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 3),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_TIMEOUT_S * 1000),
)
"""Options for connections that can fail over to another head: the kernel detects a peer that is gone."""


class HeadSelector:
    """All heads of one pool, safe to use from several threads. ``current`` is the one in use."""

    def __init__(self, endpoint: TlsEndpoint) -> None:
        self._configured = endpoint
        self._path = heads.heads_file(endpoint)
        stored = heads.load_heads(self._path)
        self._stores_heads = endpoint.login or stored is not None
        self.head_list = stored or HeadList()
        self._endpoints = self._all_endpoints()
        self._contexts: dict[TlsEndpoint, ssl.SSLContext] = {}
        self._busy = threading.Lock()
        self._suspect = False
        self._waiting = False  # whether a head said at the last search that it is a standby
        last = (endpoint for endpoint in reversed(self._endpoints) if endpoint.url == self.head_list.last)
        self.current = next(last, self._endpoints[0])

    @property
    def has_alternatives(self) -> bool:
        """Return whether there is another endpoint than the configured one."""
        return len(self._endpoints) > 1

    def _all_endpoints(self) -> list[TlsEndpoint]:
        configured, found = self._configured, []
        for head in self.head_list.heads:
            endpoint = TlsEndpoint(head.url, configured.token, certificate=head.certificate)
            if (
                configured.fingerprint is not None
                and heads.heads_file(replace(endpoint, url=configured.url)) == self._path
            ):
                configured = replace(configured, fingerprint=None, certificate=head.certificate)
            found.append(endpoint)
        return [
            configured,
            *(
                endpoint
                for endpoint in found
                if endpoint.url != configured.url or configured.certificate not in {None, endpoint.certificate}
            ),
        ]

    def context(self, endpoint: TlsEndpoint) -> ssl.SSLContext:
        """Return the TLS context for an endpoint. Raises ``GpupoolError``."""
        if endpoint not in self._contexts:
            self._contexts[endpoint] = endpoint.context()
        return self._contexts[endpoint]

    # Connections

    def connect_to_leader(self, timeout_s: float, notify: Callable[[str], None] | None = None) -> HeadConnection:
        """Return a connection to the leading head; wait for a short time if only standbys answer. Raises ``OSError``.

        ``notify`` receives a message when no head leads. ``timeout_s`` also applies to requests on the connection.
        """
        problem: Exception | None = None
        if not self._suspect:
            try:
                return self._connect(self.current, timeout_s)
            except (OSError, GpupoolError) as error:
                if not self.has_alternatives:
                    raise
                problem = error
        deadline = time.monotonic() + min(timeout_s, TAKEOVER_TIMEOUT_S)
        answer_deadline = time.monotonic() + NO_ANSWER_TIMEOUT_S
        while True:
            if (found := self.find_leader()) is not None:
                try:
                    return self._connect(found, timeout_s)
                except (OSError, GpupoolError) as error:
                    problem = error
            if self._waiting:
                answer_deadline, problem = deadline, _no_leader()
            if time.monotonic() > min(answer_deadline, deadline):
                raise problem or _no_leader()
            if found is None and self._waiting and notify is not None:
                notify("no head of the pool leads at the moment; waiting for one")
                notify = None
            time.sleep(SEARCH_INTERVAL_S)

    def _connect(self, endpoint: TlsEndpoint, timeout_s: float) -> HeadConnection:
        """Return a connection with a verified certificate. Raises ``OSError``, ``GpupoolError``."""
        connection = HeadConnection(
            self, endpoint, min(timeout_s, CONNECT_TIMEOUT_S) if self.has_alternatives else timeout_s
        )
        try:
            connection.connect()
        except BaseException:
            connection.close()
            raise
        connection.timeout = timeout_s
        connection.sock.settimeout(timeout_s)
        if self.has_alternatives:
            enable_keepalive(connection.sock)
        return connection

    # Leader

    def mark_suspect(self, endpoint: TlsEndpoint) -> None:
        """Search for the leader before this head is used again."""
        self._suspect = self._suspect or (self.has_alternatives and endpoint == self.current)

    def find_leader(self, instead_of: TlsEndpoint | None = None) -> TlsEndpoint | None:
        """Ask all heads which one leads, and use it; None when no head leads within a few seconds.

        ``instead_of`` is the head that was tried: if another thread has already found another one, that one is
        returned.
        """
        with self._busy:
            if instead_of is not None and self.current != instead_of:
                return self.current
            answers_by_endpoint = self._ask_all()
            self._waiting = any(health.get("status") == "waiting" for health in answers_by_endpoint.values())
            terms = {
                endpoint: _term(health)
                for endpoint, health in answers_by_endpoint.items()
                if health.get("status") == "ok"
            }
            if not terms:
                return None
            newest = max(terms.values())
            self.current = next(endpoint for endpoint in self._endpoints if terms.get(endpoint) == newest)
            self._suspect = False
            return self.current

    def _ask_all(self) -> dict[TlsEndpoint, Mapping[str, Any]]:
        answers: queue.SimpleQueue[tuple[TlsEndpoint, Mapping[str, Any]]] = queue.SimpleQueue()
        for endpoint in self._endpoints:
            threading.Thread(
                target=lambda endpoint=endpoint: answers.put((endpoint, self._health(endpoint))), daemon=True
            ).start()
        answers_by_endpoint: dict[TlsEndpoint, Mapping[str, Any]] = {}
        until = time.monotonic() + CONNECT_TIMEOUT_S
        while len(answers_by_endpoint) < len(self._endpoints) and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                endpoint, answers_by_endpoint[endpoint] = answers.get(timeout=left)
                if answers_by_endpoint[endpoint].get("status") == "ok":
                    until = min(until, time.monotonic() + NEWER_TERM_WAIT_S)
        return answers_by_endpoint

    def _health(self, endpoint: TlsEndpoint) -> Mapping[str, Any]:
        """Return a head's health; empty when it does not answer or has the wrong certificate."""
        host, port = endpoint.address
        try:
            context = self.context(endpoint)
            connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT_S, context=context)
            with contextlib.closing(connection):
                return get_json(connection, "/v1/health", {}, _HEALTH_LIMIT_BYTES)
        except (OSError, GpupoolError, ValueError):
            return {}

    def mark_used(self, endpoint: TlsEndpoint) -> None:
        """Store that this head answered, so that the next command uses it first."""
        if self.has_alternatives and endpoint.url != self.head_list.last:
            self._store(replace(self.head_list, last=endpoint.url))

    # List of heads

    @property
    def needs_refresh(self) -> bool:
        """Return whether the list of heads must be fetched again."""
        return self._stores_heads and bool(self._configured.token) and not self.head_list.fresh

    def refresh_heads(self, ask: Callable[[], object]) -> None:
        """Fetch the list of heads from one that has just answered as the leader; failures are ignored."""
        self.head_list = replace(self.head_list, asked_at=time.time())  # once, even after a failure
        try:
            self.store_answer(ask())
        except (OSError, ValueError):
            self._store(self.head_list)

    def fetch_heads(self, connection: http.client.HTTPConnection) -> object:
        """Return the list of heads from a connection. Raises ``OSError``, ``ValueError``."""
        connection.sock.settimeout(LEARN_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self._configured.token}"}
        return get_json(connection, heads.HEADS_PATH, headers, heads.ANSWER_LIMIT_BYTES)

    def store_answer(self, answer: object) -> None:
        """Store a list of heads. Raises ``ValueError`` for an invalid one."""
        self._store(replace(self.head_list, heads=heads.parse_heads(answer), asked_at=time.time()))

    def _store(self, head_list: HeadList) -> None:
        self.head_list = head_list
        self._endpoints = self._all_endpoints()
        if self._stores_heads:
            heads.save_heads(self._path, head_list)


class HeadConnection(http.client.HTTPSConnection):
    """A connection to one head. If there are others, ``NotLeading`` is raised for the answer of a standby."""

    def __init__(self, selector: HeadSelector, endpoint: TlsEndpoint, timeout_s: float) -> None:
        host, port = endpoint.address
        super().__init__(host, port, timeout=timeout_s, context=selector.context(endpoint))
        self._selector = selector
        self.endpoint = endpoint
        self._is_read = False

    def putrequest(
        self,
        method: str,
        url: str,
        skip_host: bool = False,
        skip_accept_encoding: bool = False,
    ) -> None:
        """Send the request line, and note whether the request only reads."""
        self._is_read = method == "GET"
        super().putrequest(method, url, skip_host, skip_accept_encoding)

    def getresponse(self) -> http.client.HTTPResponse:
        """Return the response. Raises ``NotLeading``, ``OSError`` and ``HTTPException``."""
        response = super().getresponse()
        if response.status != _SERVICE_UNAVAILABLE:
            self._selector.mark_used(self.endpoint)
        elif self._selector.has_alternatives and self._is_rejected(response):
            self.close()
            raise NotLeading("this head of the pool does not lead")
        return response

    def _is_rejected(self, response: http.client.HTTPResponse) -> bool:
        """Return whether the request was not executed; a former leader may have executed a part of it."""
        if is_standby_answer(response.status, response.getheader):
            self._selector.mark_suspect(self.endpoint)
            return True
        return self._selector.find_leader(self.endpoint) not in {None, self.endpoint} and self._is_read


def enable_keepalive(sock: socket.socket) -> None:
    """Let the kernel detect a peer that is gone."""
    with contextlib.suppress(OSError):
        for option in SOCKET_OPTIONS:
            sock.setsockopt(*option)


def is_standby_answer(status: int, header: Callable[[str], str | None]) -> bool:
    """Return whether an answer is from a standby control plane, which did not execute the request."""
    return status == _SERVICE_UNAVAILABLE and header("retry-after") is not None


def _no_leader() -> OSError:
    return ConnectionRefusedError("no head of the pool leads at the moment")


def _term(health: Mapping[str, Any]) -> int:
    term = health.get("term")
    return term if isinstance(term, int) else 0


def get_json(
    connection: http.client.HTTPConnection, target: str, headers: dict[str, str], limit: int
) -> Mapping[str, Any]:
    """Return the JSON object at an address. Raises ``OSError``, ``ValueError``."""
    answer = ask(connection, "GET", target, headers=headers, limit=limit)
    if answer.status != http.client.OK or not isinstance(answer.body, dict):
        raise ValueError(f"status {answer.status}")
    return answer.body
