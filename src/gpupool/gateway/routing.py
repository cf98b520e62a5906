"""Routes with their load: which service a request is for, and which replica gets it. Pure; times are arguments."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gpupool.domain.protocol.gateway_table import Load, Route, RouteAccess, TokenUse, is_port_host
from gpupool.gateway.credentials import TokenSet

MAX_SAMPLES = 1_000  # times to the first byte, of a route between two reports
COOLDOWN_S = 1.0  # of a replica that could not be reached; doubles with each failure
MAX_COOLDOWN_S = 8.0
PATH = b"/s/"


class HeldRequest(Protocol):
    """A held request."""

    def dispatch(self) -> None:
        """Choose a replica and send the request, or hold it."""


@dataclass(slots=True, eq=False)
class ReplicaLoad:
    """A replica with its load. A replica that failed is not chosen before ``cool_until``.

    ``agent``, ``key``, ``direct``: as those of ``RouteReplica``.
    """

    id: str
    address: str
    host: str
    port: int
    agent: str = ""
    key: str = ""
    direct: bool = True
    draining: bool = False
    gone: bool = False
    in_flight: int = 0
    failures: int = 0
    cool_until: float = 0.0

    def failed(self, now: float) -> None:
        """Record that it could not be reached."""
        self.cool_until = now + min(MAX_COOLDOWN_S, COOLDOWN_S * 2.0 ** min(self.failures, 5))
        self.failures += 1

    def answered(self) -> None:
        """Record that it could be reached."""
        if self.failures:
            self.failures, self.cool_until = 0, 0.0


@dataclass(slots=True)
class RequestCounts:
    """Events of a route since its last report."""

    requests: int = 0
    errors: int = 0
    refused: int = 0
    samples_ms: list[float] = field(default_factory=list)
    tokens: dict[str, TokenUse] = field(default_factory=dict)


class RouteState:
    """A route, its replicas and its held requests."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.prefix = PATH + route.key.encode()
        self.replicas: list[ReplicaLoad] = []
        self.held: dict[HeldRequest, None] = {}  # in the order of arrival
        self.in_flight = 0
        self.counts = RequestCounts()
        self.changed = False
        self.gone = False
        self.tokens = TokenSet(())
        self.local_host = b""  # as which the program of a local route is addressed
        self._next = 0
        self.update(route)

    def update(self, route: Route) -> None:
        """Apply a new version of the route; replicas that stay keep their load."""
        earlier = {(replica.id, replica.address, replica.key): replica for replica in self.replicas}
        self.route = route
        self.tokens = TokenSet(route.tokens)
        self.replicas = []
        for given in route.replicas:
            host, _, port = given.address.rpartition(":")
            replica = earlier.pop((given.id, given.address, given.key), None) or ReplicaLoad(
                given.id, given.address, host.strip("[]"), int(port), given.agent, given.key, given.direct
            )
            replica.draining, replica.agent = given.draining, given.agent
            replica.cool_until = 0.0
            self.replicas.append(replica)
        if route.local and self.replicas:
            self.local_host = b"localhost:%d" % self.replicas[0].port
        for replica in earlier.values():
            replica.gone = True

    @property
    def public(self) -> bool:
        """Return whether requests need no token."""
        return self.route.access is RouteAccess.PUBLIC

    def admits(self, digests: Iterable[str]) -> str | None:
        """Return the digest that admits a request; empty on a public route without one; None: refused."""
        for digest in digests:
            if digest in self.tokens:
                return digest
        return "" if self.public else None

    def choose(self, now: float, tried: Iterable[ReplicaLoad] = ()) -> ReplicaLoad | None:
        """Return the replica with the fewest requests in flight; in turn among equal ones. None: there is none."""
        found: ReplicaLoad | None = None
        count = len(self.replicas)
        self._next += 1
        for number in range(count):
            replica = self.replicas[(number + self._next) % count]
            if replica.draining or replica.cool_until > now or replica in tried:
                continue
            if found is None or replica.in_flight < found.in_flight:
                found = replica
        return found

    def begin(self, digest: str) -> None:
        """Count a request."""
        self.counts.requests += 1
        self._add(digest, TokenUse(requests=1))
        self.in_flight += 1
        self.changed = True

    def answered(self, milliseconds: float) -> None:
        """Record the time to the first byte of a response."""
        if len(self.counts.samples_ms) < MAX_SAMPLES:
            self.counts.samples_ms.append(milliseconds)

    def end(self, digest: str, use: TokenUse) -> None:
        """Count the end of a request; ``use`` has what is known only then."""
        self.in_flight -= 1
        self.counts.errors += use.errors
        self._add(digest, use)
        self.changed = True

    def _add(self, digest: str, use: TokenUse) -> None:
        tokens = self.counts.tokens
        before = tokens.get(digest)
        tokens[digest] = use if before is None else before.plus(use)

    def take_load(self) -> Load:
        """Return the load, and begin to count anew."""
        counts, self.counts, self.changed = self.counts, RequestCounts(), False
        times = sorted(counts.samples_ms)
        middle = (times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)]) if times else None
        held = len(self.held)
        busy = {replica.id: replica.in_flight for replica in self.replicas if replica.in_flight}
        return Load(
            self.route.key,
            self.in_flight - held,
            held,
            counts.requests,
            counts.errors,
            middle,
            counts.tokens,
            busy,
            counts.refused,
        )


class Router:
    """All routes, found by key, path, host name and model."""

    def __init__(self) -> None:
        self.routes: dict[str, RouteState] = {}
        self.known = TokenSet(())  # all tokens of all routes
        self._by_host: dict[bytes, RouteState] = {}
        self._by_model: dict[str, list[RouteState]] = {}

    def replace(self, routes: Mapping[str, Route]) -> list[RouteState]:
        """Apply all routes; return those that are gone."""
        gone = [state for key, state in self.routes.items() if key not in routes]
        for state in gone:
            state.gone = True
            for replica in state.replicas:
                replica.gone = True
        kept = self.routes
        self.routes = {}
        for key, route in sorted(routes.items()):
            state = self.routes[key] = kept.get(key) or RouteState(route)
            if state.route != route:
                state.update(route)
        self._index()
        return gone

    def by_path(self, target: bytes) -> tuple[RouteState, bytes] | None:
        """Return the route of ``/s/PROJECT/NAME/...`` and the rest of the target; the rest is empty without a slash."""
        path, mark, query = target.partition(b"?")
        parts = path.split(b"/", 4)
        if len(parts) < 4 or parts[1] != b"s":
            return None
        state = self.routes.get(f"{parts[2].decode('latin-1')}/{parts[3].decode('latin-1')}")
        if state is None or state.route.local:
            return None
        rest = b"/" + parts[4] if len(parts) == 5 else b""
        return state, rest + mark + query if rest else b""

    def by_host(self, host: bytes) -> RouteState | None:
        """Return the route of a host name (in lower case, with or without a port)."""
        if not self._by_host:
            return None
        return self._by_host.get(_without_port(host))

    def by_model(self, model: str) -> list[RouteState]:
        """Return the routes that serve a model."""
        return self._by_model.get(model, [])

    def may_list_models(self, digests: Collection[str]) -> bool:
        """Return whether a request with these digests may use calls by model name at all."""
        return any(digest in self.known for digest in digests) or any(state.public for _, state in self._models())

    def model_entries(self, digests: Collection[str]) -> dict[str, dict[str, object]]:
        """Return the entries of ``/v1/models`` that these digests may use, by model; the first route of each counts."""
        found: dict[str, dict[str, object]] = {}
        for model, state in self._models():
            if model not in found and state.admits(digests) is not None:
                found[model] = {"id": model, "object": "model", "created": 0, "owned_by": state.route.key}
        return found

    def _models(self) -> Iterator[tuple[str, RouteState]]:
        """Yield all models in order, each with its routes."""
        for model, states in sorted(self._by_model.items()):
            yield from ((model, state) for state in states)

    def _index(self) -> None:
        self._by_host, self._by_model = {}, {}
        digests: set[str] = set()
        for state in self.routes.values():
            digests.update(state.route.tokens)
            for host in state.route.hosts:
                if is_port_host(host) is state.route.local:
                    self._by_host.setdefault(host.encode(), state)
            for model in state.route.models:
                self._by_model.setdefault(model, []).append(state)
        self.known = TokenSet(digests)


class ModelCall(NamedTuple):
    """The parts of a call by model name that the gateway uses. ``stream``: the client wants server-sent events."""

    model: str
    stream: bool


def parse_model_call(body: bytes) -> ModelCall | None:
    """Parse the JSON object of a call; None without the text ``model``."""
    try:
        document = json.loads(body)
        model, stream = document["model"], document.get("stream") is True
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    return ModelCall(model, stream) if isinstance(model, str) else None


def reserved(host: bytes) -> bool:
    """Return whether a host name (with or without a port) is that of a port of a workload.

    Nothing else may be served there, or pages of services would have the origin of a program that ended.
    """
    return host.startswith(b"w") and is_port_host(_without_port(host).decode("latin-1"))


def _without_port(host: bytes) -> bytes:
    return host.rpartition(b":")[0] if b":" in host else host
