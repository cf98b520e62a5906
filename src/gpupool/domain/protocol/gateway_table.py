"""The messages between the control plane and the gateway: JSON lines over the unix socket ``gateway.sock``.

The gateway listens and the control plane connects. The control plane sends a ``Table`` (all routes) first, then one
``RouteChange`` or ``RouteRemoval`` per change; versions increase. The gateway answers with ``Load`` (at most once a
second for each route that changed) and ``Wake`` (at once, for the first held request of a route).

``Route.tokens`` has the SHA-256 hex digests of all bearer tokens that may use the route: the control plane resolves
members and projects. A public route has none. ``Route.replicas`` has replicas that are ready or draining.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

GATEWAY_SOCKET = "gateway.sock"  # in the run folder; so is the next
GATEWAY_ADDRESS = "gateway.json"  # where the gateway listens: {"host", "port", "tls", "pid"}, or {"error", "pid"}
MAX_ROUTES = 2_000
MAX_REPLICAS = 512  # of a route; so are the next three
MAX_TOKENS = 5_000
MAX_MODELS = 64
MAX_HOSTS = 16
MAX_HELD = 10_000
MAX_HOLD_S = 3_600.0
MAX_BODY_BYTES = 64 << 30
MAX_TEXT = 512  # characters of names, addresses and reasons
MAX_LINE_BYTES = 32 << 20
DEFAULT_HELD = 100
DEFAULT_HOLD_S = 600.0
DEFAULT_BODY_BYTES = 1 << 30

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_HOST = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9][A-Za-z0-9.-]{0,252}):([0-9]{1,5})")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f]*")
_PORT_HOST = re.compile(r"w[0-9a-z]{10}-[0-9]{1,9}-[0-9]{1,5}\..+")
T = TypeVar("T")


def port_host(workload: str, index: int, port: int, domain: str) -> str:
    """Return the host name at which a port of a workload is served: an origin of its own for each."""
    return f"{workload}-{index}-{port}.{domain}"


def is_port_host(host: str) -> bool:
    """Return whether a host name is reserved for a port of a workload; services cannot use it."""
    return _PORT_HOST.fullmatch(host) is not None


class MessageError(ValueError):
    """Raised for a line that is no valid message; the text says which part and why."""


class RouteAccess(StrEnum):
    """The users that may call a service. All but PUBLIC need one of the route's tokens."""

    PUBLIC = "public"
    MEMBERS = "members"
    PROJECT = "project"
    TOKEN = "token"  # noqa: S105 - an access rule, not a secret


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """Limits of a route: held requests, seconds that a request is held, bytes of a request body."""

    held: int = DEFAULT_HELD
    hold_s: float = DEFAULT_HOLD_S
    body_bytes: int = DEFAULT_BODY_BYTES


@dataclass(frozen=True, slots=True)
class RouteReplica:
    """A replica that is ready. A draining one gets no new requests; ``address`` is HOST:PORT.

    ``agent`` is the unix socket that leads to its node's agent, which connects to the port of the program ``key``;
    empty if there is none. ``direct``: the replica listens on its address, so that the agent is rarely needed.
    """

    id: str
    address: str
    draining: bool = False
    agent: str = ""
    key: str = ""
    direct: bool = True


@dataclass(frozen=True, slots=True)
class Route:
    """A service as the gateway sees it. ``estimate_s``: seconds until the first replica is expected, if known.

    ``local``: the port of a workload instead of a service. It is served at its host names only, to pages of the same
    origin, and its program sees requests for localhost.
    """

    project: str
    name: str
    access: RouteAccess = RouteAccess.PROJECT
    tokens: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    limits: RouteLimits = field(default_factory=RouteLimits)
    replicas: tuple[RouteReplica, ...] = ()
    estimate_s: float | None = None
    reason: str = ""
    local: bool = False

    @property
    def key(self) -> str:
        """Return the identity of the route: PROJECT/NAME."""
        return f"{self.project}/{self.name}"


@dataclass(frozen=True, slots=True)
class Table:
    """All routes; replaces all earlier ones."""

    version: int
    routes: tuple[Route, ...] = ()


@dataclass(frozen=True, slots=True)
class RouteChange:
    """A new or changed route."""

    version: int
    route: Route


@dataclass(frozen=True, slots=True)
class RouteRemoval:
    """A route that no longer exists."""

    version: int
    key: str


@dataclass(frozen=True, slots=True)
class TokenUse:
    """The use of a service with one token: requests that began, and of those that ended errors, bytes and time.

    ``received`` and ``sent`` are bytes of bodies from and to clients, ``busy_s`` seconds of requests at replicas.
    """

    requests: int = 0
    errors: int = 0
    received: int = 0
    sent: int = 0
    busy_s: float = 0.0

    def plus(self, other: TokenUse) -> TokenUse:
        """Return the sum of both."""
        return TokenUse(
            self.requests + other.requests,
            self.errors + other.errors,
            self.received + other.received,
            self.sent + other.sent,
            self.busy_s + other.busy_s,
        )


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a route. ``requests``, ``errors`` and ``tokens`` count since the last ``Load`` of the route.

    ``errors`` are answers 502, 503 and 504 of the gateway itself and connections that broke during an answer;
    ``refused`` are those 503 for which no replica was ready.
    ``first_byte_ms`` is the p50 and p99 of the time to the first byte since the last ``Load``; None without answers.
    ``tokens`` has the use by digest of the token, empty for requests without one. ``replicas`` has the requests in
    flight of busy replicas.
    """

    key: str
    in_flight: int
    held: int
    requests: int
    errors: int
    first_byte_ms: tuple[float, float] | None = None
    tokens: dict[str, TokenUse] = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Wake:
    """The first request is held for a route without a ready replica."""

    key: str


Command = Table | RouteChange | RouteRemoval
Report = Load | Wake
_TYPES = {Table: "table", RouteChange: "route", RouteRemoval: "remove", Load: "load", Wake: "wake"}


def encode(message: Command | Report) -> bytes:
    """Return a message as one line of JSON."""
    data: dict[str, Any] = {"type": _TYPES[type(message)]}
    match message:
        case Table():
            data |= {"version": message.version, "routes": [route_to_dict(route) for route in message.routes]}
        case RouteChange():
            data |= {"version": message.version, "route": route_to_dict(message.route)}
        case _:
            data |= asdict(message)
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def route_to_dict(route: Route) -> dict[str, Any]:
    """Return plain JSON values."""
    return {"key": route.key, **asdict(route)}


def decode_command(line: bytes) -> Command:
    """Return the message of the control plane in a line. Raises ``MessageError``."""
    data = _document(line)
    match data.get("type"):
        case "table":
            routes = _list(data, "routes", _route, MAX_ROUTES)
            if len({route.key for route in routes}) != len(routes):
                raise MessageError("routes: a key appears twice")
            return Table(_version(data), routes)
        case "route":
            return RouteChange(_version(data), _route(data.get("route")))
        case "remove":
            return RouteRemoval(_version(data), _key(data))
    raise MessageError(f"type: {_shown(data.get('type'))} is not a message of the control plane")


def decode_report(line: bytes) -> Report:
    """Return the message of the gateway in a line. Raises ``MessageError``."""
    data = _document(line)
    match data.get("type"):
        case "load":
            return _load(data)
        case "wake":
            return Wake(_key(data))
    raise MessageError(f"type: {_shown(data.get('type'))} is not a message of the gateway")


def _load(data: Mapping[str, Any]) -> Load:
    counts = {name: int(_number(data, name, 0, whole=True)) for name in ("in_flight", "held", "requests", "errors")}
    times = data.get("first_byte_ms")
    if times is not None and (not isinstance(times, list) or len(times) != 2):
        raise MessageError("first_byte_ms: two numbers are needed")
    pair = None
    if times is not None:
        p50, p99 = (_number({"first_byte_ms": value}, "first_byte_ms", 0) for value in times)
        pair = (p50, p99)
    tokens = data.get("tokens", {})
    if not isinstance(tokens, dict) or len(tokens) > MAX_TOKENS:
        raise MessageError(f"tokens: an object of at most {MAX_TOKENS} counts is needed")
    used = {_token(key): _use(tokens[key]) for key in tokens}
    busy = data.get("replicas", {})
    if not isinstance(busy, dict) or len(busy) > MAX_REPLICAS:
        raise MessageError(f"replicas: an object of at most {MAX_REPLICAS} counts is needed")
    loads = {_matching(_PRINTABLE, "replicas")(key): int(_number(busy, key, 0, whole=True)) for key in busy}
    refused = int(_number({"refused": data.get("refused", 0)}, "refused", 0, whole=True))
    return Load(_key(data), **counts, first_byte_ms=pair, tokens=used, replicas=loads, refused=refused)


def _token(key: str) -> str:
    return key and _matching(_DIGEST, "tokens")(key)


def _use(value: Any) -> TokenUse:
    if isinstance(value, int):  # of a gateway that was started by an earlier release
        value = {"requests": value}
    if not isinstance(value, dict):
        raise MessageError("tokens: an object for each token is needed")
    given = {name: value.get(name, 0) for name in ("requests", "errors", "received", "sent", "busy_s")}
    counts = {name: int(_number(given, name, 0, whole=True)) for name in given if name != "busy_s"}
    return TokenUse(**counts, busy_s=_number(given, "busy_s", 0))


def _document(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise MessageError(f"a line has at most {MAX_LINE_BYTES} bytes")
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise MessageError("a message is an object")
    return data


def _route(data: Any) -> Route:
    if not isinstance(data, dict):
        raise MessageError("route: an object is needed")
    project, name = (_matching(_NAME, part)(data.get(part)) for part in ("project", "name"))
    try:
        access = RouteAccess(str(data.get("access")))
    except ValueError as error:
        raise MessageError(f"access: {_shown(data.get('access'))} is none of {', '.join(RouteAccess)}") from error
    estimate = data.get("estimate_s")
    route = Route(
        project=project,
        name=name,
        access=access,
        tokens=_list(data, "tokens", _matching(_DIGEST, "tokens"), MAX_TOKENS),
        models=_list(data, "models", _matching(_PRINTABLE, "models"), MAX_MODELS),
        hosts=_list(data, "hosts", _matching(_HOST, "hosts"), MAX_HOSTS),
        limits=_limits(data.get("limits", {})),
        replicas=_list(data, "replicas", _replica, MAX_REPLICAS),
        estimate_s=None if estimate is None else _number(data, "estimate_s", 0),
        reason=_matching(_PRINTABLE, "reason")(data.get("reason", "")),
        local=data.get("local", False) is True,
    )
    if route.local and (route.access is not RouteAccess.TOKEN or not all(map(is_port_host, route.hosts))):
        raise MessageError("local: only tokens and host names of ports are possible")
    if data.get("key", route.key) != route.key:
        raise MessageError(f"key: {_shown(data.get('key'))} is not {route.key}")
    if len({replica.id for replica in route.replicas}) != len(route.replicas):
        raise MessageError("replicas: an id appears twice")
    return route


def _limits(data: Any) -> RouteLimits:
    if not isinstance(data, dict):
        raise MessageError("limits: an object is needed")
    given = {"held": DEFAULT_HELD, "hold_s": DEFAULT_HOLD_S, "body_bytes": DEFAULT_BODY_BYTES} | data
    return RouteLimits(
        held=int(_number(given, "held", 0, MAX_HELD, whole=True)),
        hold_s=_number(given, "hold_s", 0, MAX_HOLD_S),
        body_bytes=int(_number(given, "body_bytes", 0, MAX_BODY_BYTES, whole=True)),
    )


def _replica(data: Any) -> RouteReplica:
    if not isinstance(data, dict):
        raise MessageError("replicas: objects are needed")
    address = _text(data.get("address"), "address")
    draining, direct = data.get("draining", False), data.get("direct", True)
    matched = _ADDRESS.fullmatch(address)
    if not matched or not 1 <= int(matched[1]) <= 65535:
        raise MessageError(f"address: {_shown(address)} is not HOST:PORT")
    if not isinstance(draining, bool) or not isinstance(direct, bool):
        raise MessageError("draining, direct: true or false is needed")
    agent, key = (_matching(_PRINTABLE, part)(data.get(part, "")) for part in ("agent", "key"))
    if agent and not (agent.startswith("/") and key):
        raise MessageError("agent: an absolute path and a key are needed")
    if not direct and not agent:
        raise MessageError("direct: a replica without an agent is reached directly")
    return RouteReplica(_matching(_PRINTABLE, "id")(data.get("id")), address, draining, agent, key, direct)


def _key(data: Mapping[str, Any]) -> str:
    key = _text(data.get("key"), "key")
    if not all(_NAME.fullmatch(part) for part in key.split("/")) or key.count("/") != 1:
        raise MessageError(f"key: {_shown(key)} is not PROJECT/NAME")
    return key


def _version(data: Mapping[str, Any]) -> int:
    return int(_number(data, "version", 0, whole=True))


def _list(data: Mapping[str, Any], name: str, read: Callable[[Any], T], most: int) -> tuple[T, ...]:
    values = data.get(name, [])
    if not isinstance(values, list) or len(values) > most:
        raise MessageError(f"{name}: a list of at most {most} is needed")
    return tuple(read(value) for value in values)


def _matching(pattern: re.Pattern[str], name: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = _text(value, name)
        if not pattern.fullmatch(text):
            raise MessageError(f"{name}: {_shown(text)} is not allowed")
        return text

    return read


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise MessageError(f"{name}: a text of at most {MAX_TEXT} characters is needed")
    return value


def _number(
    data: Mapping[str, Any], name: str, least: float, most: float = float(2**53), *, whole: bool = False
) -> float:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not least <= value <= most:
        raise MessageError(f"{name}: a number from {least:g} to {most:g} is needed")
    return value


def _shown(value: Any) -> str:
    return repr(value)[:80]
