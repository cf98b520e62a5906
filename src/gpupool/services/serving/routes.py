"""The routing table of the gateway: built from the services, their ready replicas and the tokens of their users."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from gpupool.domain.errors import GpupoolError
from gpupool.domain.people.access import Scope, Token
from gpupool.domain.protocol.gateway_table import (
    MAX_REPLICAS,
    MAX_TEXT,
    MAX_TOKENS,
    Route,
    RouteAccess,
    RouteLimits,
    RouteReplica,
)
from gpupool.domain.work.gang import MemberAddress
from gpupool.domain.work.service import Access, ReplicaStatus, Service
from gpupool.domain.work.workload import Replica
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.engine import Engine
from gpupool.services.ports.adapters import Gateway
from gpupool.services.serving.readiness import Readiness
from gpupool.services.state.identity_cache import IdentityCache

TOKENS_EVERY_S = 5.0
OtherRoutes = Callable[[Gateway, Sequence[Token]], Sequence[Route]]


class Placed(Protocol):
    """A replica with its place."""

    @property
    def view(self) -> ReplicaStatus:
        """Return the replica."""

    @property
    def seat(self) -> MemberAddress | None:
        """Return its address; None while it does not run."""

    @property
    def replica(self) -> Replica:
        """Return its row."""

    @property
    def readiness(self) -> Readiness | None:
        """Return the result of its checks."""


class RouteTable:
    """Builds the routes and publishes them to the gateway, if the pool has one."""

    def __init__(self, engine: Engine, identities: IdentityCache, permissions: Permissions) -> None:
        self._engine = engine
        self._identities = identities
        self._permissions = permissions
        self._tokens: Sequence[Token] = ()
        self._read_at: float | None = None

    def forget_tokens(self) -> None:
        """Read the tokens again before the next publication: one was revoked."""
        self._read_at = None

    def holder(self, service: Service, digest: str) -> tuple[str, str]:
        """Return the name and the user of a token; of a service's own token its number, and no user."""
        own = service.routing.tokens
        if not digest:
            return "none", ""
        if digest in own:
            return f"service token {own.index(digest) + 1}", ""
        return next(((each.id, each.user) for each in self._tokens if each.secret_sha256 == digest), ("deleted", ""))

    async def publish(
        self, services: Iterable[tuple[Service, Sequence[Placed], str, float | None]], others: OtherRoutes
    ) -> bool:
        """Send the routes of all services, and ``others``; return whether there are any.

        A service comes with the reason why it has no ready replica, and the seconds until one is expected.
        """
        gateway = self._engine.ports.gateway
        if gateway is None:
            return False
        await self._read_tokens()
        found = [*(self._route(*each) for each in services), *others(gateway, self._tokens)]
        gateway.publish(found)
        return bool(found)

    async def _read_tokens(self) -> None:
        now = self._engine.ports.clock.monotonic()
        if self._read_at is None or now - self._read_at >= TOKENS_EVERY_S:
            with suppress(GpupoolError):  # without the database the earlier ones stay valid
                self._tokens = await self._engine.ports.store.tokens.list()
                self._read_at = now

    def _route(self, service: Service, replicas: Sequence[Placed], reason: str, expected_in_s: float | None) -> Route:
        routing = service.routing
        usable = [
            self._replica(each, each.seat)
            for each in replicas
            if each.seat is not None and (each.view.ready or (each.view.draining_s is not None and each.view.served))
        ]
        return Route(
            project=service.project,
            name=service.name,
            access=RouteAccess(routing.access.value),
            tokens=self.tokens_of(service),
            models=routing.models,
            hosts=routing.hosts,
            limits=RouteLimits(0 if service.stopped else routing.held, routing.hold_s, routing.body_bytes),
            replicas=tuple(usable[:MAX_REPLICAS]),
            estimate_s=expected_in_s,
            reason=_printable(reason)[:MAX_TEXT],
        )

    def _replica(self, each: Placed, seat: MemberAddress) -> RouteReplica:
        socket: Path | None = None
        with suppress(GpupoolError):  # the node is not known: it can only be reached directly
            socket = self._engine.ports.fabric.link(seat.node).socket
        agent, key = (str(socket), each.replica.key) if socket is not None else ("", "")
        direct = not agent or each.readiness is None or each.readiness.direct
        return RouteReplica(each.view.id, seat.endpoint, each.view.draining_s is not None, agent, key, direct)

    def tokens_of(self, service: Service) -> tuple[str, ...]:
        """Return the digests of the tokens that may use a service: its own, and those of users with access."""
        access = service.routing.access
        if access is Access.PUBLIC:
            return ()
        if access is Access.TOKEN:
            return service.routing.tokens
        return (*service.routing.tokens, *self._user_tokens(service))

    def _user_tokens(self, service: Service) -> tuple[str, ...]:
        access = service.routing.access
        project = self._identities.projects.get(service.project)
        if project is None:
            return ()
        now = self._engine.ports.clock.now()

        def member(user: str) -> bool:
            return not project.members or user in project.members or user == service.user

        allowed: Callable[[str], bool] = member if access is Access.PROJECT else (lambda _: True)
        digests = [each.secret_sha256 for each in self._tokens if self._valid(each, now) and allowed(each.user)]
        return tuple(sorted(digests)[: MAX_TOKENS - len(service.routing.tokens)])

    def _valid(self, token: Token, now: float) -> bool:
        user = self._identities.users.get(token.user)
        enabled = user is not None and not user.disabled
        return enabled and token.revoked_at is None and token.expires_at > now and token.scope.includes(Scope.SUBMIT)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
