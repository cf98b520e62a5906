"""Ports of workloads that users opened in their browsers through the gateway.

A user who may attach to a workload gets a ticket for one of its ports. The ticket is a secret in the link; the gateway
makes it a cookie of the port's own host name. Tickets are in memory, as digests; they end after ``TICKET_LIFETIME_S``,
with their workload, and with the rights of their user.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import quote

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.people.access import Actor, Token, secret_hash
from gpupool.domain.protocol.gateway_table import Route, RouteAccess, RouteLimits, RouteReplica, port_host
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.engine import Engine
from gpupool.services.files.service import FileService
from gpupool.services.ports.adapters import Gateway
from gpupool.services.serving.controller import ServiceController
from gpupool.services.state.identity_cache import IdentityCache

TICKET_LIFETIME_S = 8 * 3600.0
MAX_TICKETS = 1_000
MAX_TICKETS_OF_A_USER = 100
NEW_TOKEN_S = 15.0  # a token that is younger may be missing in the list, which is read now and then
PUBLISH_TIMEOUT_S = 20.0  # the first port starts the gateway
PUBLISH_POLL_S = 0.05
LIMITS = RouteLimits(held=50, hold_s=10.0)
TICKET_PREFIX = "gpo"
JUPYTER_TOKEN, JUPYTER_PORT = "JUPYTER_TOKEN", "JUPYTER_PORT"


@dataclass(frozen=True, slots=True)
class OpenedPort:
    """The link to a port, with its ticket, and the time at which the ticket expires."""

    url: str
    expires_at: float


@dataclass(slots=True)
class _Ticket:
    digest: str
    actor: Actor
    workload: WorkloadId
    index: int
    port: int
    expires_at: float
    published: bool = False


class OpenPorts:
    """Opens ports, and builds their routes. ``owner_uid`` is the account that is always an administrator."""

    def __init__(
        self,
        engine: Engine,
        identities: IdentityCache,
        permissions: Permissions,
        files: FileService,
        controller: ServiceController,
        owner_uid: int,
    ) -> None:
        self._engine = engine
        self._identities = identities
        self._permissions = permissions
        self._files = files
        self._controller = controller
        self._owner_uid = owner_uid
        self._tickets: list[_Ticket] = []

    def possible(self, *, here: bool) -> bool:
        """Return whether ports can be opened; ``here``: in a browser on the pool's own machine."""
        gateway = self._engine.ports.gateway
        return gateway is not None and gateway.port_domain(here=here) is not None

    async def open(self, actor: Actor, ref: str, index: int, port: int, *, here: bool) -> OpenedPort:
        """Return a link to a port on which a replica listens, for users who may attach to it.

        Raises UNSUPPORTED without a domain for ports, and WRONG_STATE if the replica does not listen.
        """
        listening = await self._files.listening_ports(actor, ref, index)
        workload = await self._files.attachable(actor, ref)
        if all(each.port != port for each in listening):
            raise GpupoolError(
                ErrorCode.WRONG_STATE, f"{workload.name} does not listen on port {port}.", "Start the server first."
            )
        gateway = self._engine.ports.gateway
        domain = None if gateway is None else gateway.port_domain(here=here)
        if gateway is None or domain is None:
            raise GpupoolError(
                ErrorCode.UNSUPPORTED,
                "This pool has no domain for ports of workloads.",
                f"Use `gpupool open {workload.name} {port}` on your machine, or `gpupool up --gateway-domain DOMAIN`.",
            )
        secret = f"{TICKET_PREFIX}_{secrets.token_urlsafe(32)}"
        ticket = self._add(actor, workload.id, index, port, secret)
        self._controller.wake()
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                while not (ticket.published and gateway.connected and gateway.url is not None):
                    await self._engine.ports.sleep(PUBLISH_POLL_S)
        except TimeoutError as error:
            raise GpupoolError(
                ErrorCode.POOL_UNREACHABLE, "The gateway does not answer.", "See `gpupool status` and its log."
            ) from error
        scheme, _, place = (gateway.url or "").partition("://")
        host = port_host(workload.id, index, port, domain)
        query = f"gpupool_token={secret}"
        env = workload.program.env
        if JUPYTER_TOKEN in env and env.get(JUPYTER_PORT, str(port)) == str(port):
            query += f"&token={quote(env[JUPYTER_TOKEN])}"
        return OpenedPort(f"{scheme}://{host}:{place.rpartition(':')[2]}/?{query}", ticket.expires_at)

    def _add(self, actor: Actor, workload: WorkloadId, index: int, port: int, secret: str) -> _Ticket:
        now = self._engine.ports.clock.now()
        self._tickets = [each for each in self._tickets if each.expires_at > now]
        own = [each for each in self._tickets if each.actor.user == actor.user]
        if len(own) >= MAX_TICKETS_OF_A_USER:
            self._tickets.remove(own[0])
        if len(self._tickets) >= MAX_TICKETS:
            self._tickets.pop(0)
        ticket = _Ticket(secret_hash(secret), actor, workload, index, port, now + TICKET_LIFETIME_S)
        self._tickets.append(ticket)
        return ticket

    def routes(self, gateway: Gateway, tokens: Sequence[Token]) -> list[Route]:
        """Return the routes of all ports with a valid ticket."""
        now = self._engine.ports.clock.now()
        self._tickets = [each for each in self._tickets if each.expires_at > now and self._allowed(each, tokens, now)]
        digests: dict[tuple[WorkloadId, int, int], list[str]] = {}
        for ticket in self._tickets:
            digests.setdefault((ticket.workload, ticket.index, ticket.port), []).append(ticket.digest)
            ticket.published = ticket.published or gateway.connected
        domains = {gateway.port_domain(here=here) for here in (True, False)} - {None}
        return [
            self._route(*place, tuple(known), tuple(sorted(filter(None, domains)))) for place, known in digests.items()
        ]

    def _route(
        self, workload: WorkloadId, index: int, port: int, digests: tuple[str, ...], domains: tuple[str, ...]
    ) -> Route:
        replicas: tuple[RouteReplica, ...] = ()
        replica = self._engine.mirror.replica(workload, index)
        with suppress(GpupoolError):  # an unknown node: held until it is known
            if replica is not None and replica.state.placed and replica.node is not None:
                socket = self._engine.ports.fabric.link(replica.node).socket
                if socket is not None:
                    place = f"127.0.0.1:{port}"
                    replicas = (RouteReplica(replica.key, place, agent=str(socket), key=replica.key, direct=False),)
        hosts = tuple(port_host(workload, index, port, domain) for domain in domains)
        access = RouteAccess.TOKEN
        return Route(
            workload, f"{index}-{port}", access, digests, hosts=hosts, limits=LIMITS, replicas=replicas, local=True
        )

    def _allowed(self, ticket: _Ticket, tokens: Sequence[Token], now: float) -> bool:
        """Return whether the ticket's user may still attach to its workload."""
        workload = self._engine.mirror.workloads.get(ticket.workload)
        if workload is None or workload.state.final:
            return False
        actor = ticket.actor
        user = self._identities.users.get(actor.user)
        if user is None or user.disabled:
            return False
        if actor.token_id:
            token = next((each for each in tokens if each.id == actor.token_id), None)
            new = ticket.expires_at - now > TICKET_LIFETIME_S - NEW_TOKEN_S
            if not new if token is None else (token.revoked_at is not None or token.expires_at <= now):
                return False
        owner = user.uid is not None and user.uid == self._owner_uid
        role = actor.role if owner or user.role.includes(actor.role) else user.role
        return self._permissions.can_manage(replace(actor, role=role), workload)
