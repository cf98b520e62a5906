"""Tickets for ports of workloads: who gets one, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from fake_fabric import FakeLink
from pool_world import ADMIN, ANN, BOB, World, refused

from gpupool.domain.errors import ErrorCode
from gpupool.domain.people.access import Actor, Role, secret_hash
from gpupool.domain.protocol.gateway_table import Report, Route, RouteAccess
from gpupool.domain.work.program.supervision import ListeningPort
from gpupool.domain.work.workload import Workload
from gpupool.services.ports.adapters import Gateway
from gpupool.services.serving.open_ports import (
    MAX_TICKETS_OF_A_USER,
    PUBLISH_TIMEOUT_S,
    TICKET_LIFETIME_S,
    OpenedPort,
)

PORT = 8888
DOMAIN = "ports.example.org"


class FakeGateway(Gateway):
    """A gateway that takes every table."""

    connected = True
    url = "https://10.0.0.1:8490"
    domain: str | None = DOMAIN

    def port_domain(self, *, here: bool) -> str | None:
        return "localhost" if here else self.domain

    async def run(self, on_report: Callable[[Report], None]) -> None:
        await asyncio.Event().wait()

    def __init__(self) -> None:
        self.tables: list[Sequence[Route]] = []

    def publish(self, routes: Sequence[Route]) -> None:
        self.tables.append(routes)


@pytest.fixture
def gateway(world: World, monkeypatch: pytest.MonkeyPatch) -> FakeGateway:
    made = FakeGateway()
    engine = world.now.engine
    monkeypatch.setattr(engine, "ports", replace(engine.ports, gateway=made))
    monkeypatch.setattr(FakeLink, "socket", Path("/run/agent.sock"))
    world.do(world.services.access.put_user(ADMIN, "ann", {}))
    return made


async def board(world: World, actor: Actor = ANN) -> Workload:
    """Start a program that listens on the port."""
    work = await world.submit(actor, env={"JUPYTER_TOKEN": "of jupyter", "JUPYTER_PORT": str(PORT)})
    world.agent.ports[world.program(work)] = [ListeningPort(PORT, "127.0.0.1", 1, "python")]
    return work


def routes(world: World, gateway: FakeGateway) -> list[Route]:
    store = world.now.engine.ports.store
    return world.services.open_ports.routes(gateway, world.do(store.tokens.list()))


def open_it(
    world: World, gateway: FakeGateway, work: Workload, actor: Actor = ANN, *, here: bool = False
) -> OpenedPort:
    async def main() -> OpenedPort:
        opening = asyncio.ensure_future(world.services.open_ports.open(actor, work.id, 0, PORT, here=here))
        while not opening.done():
            await asyncio.sleep(0)
            world.services.open_ports.routes(gateway, await world.now.engine.ports.store.tokens.list())
        return opening.result()

    return world.do(main())


def test_link_has_an_origin_of_its_own_and_a_ticket_of_which_only_the_digest_is_sent(
    world: World, gateway: FakeGateway
) -> None:
    work = world.do(board(world))
    link = urlsplit(open_it(world, gateway, work).url)
    assert (link.scheme, link.netloc, link.path) == ("https", f"{work.id}-0-{PORT}.{DOMAIN}:8490", "/")
    query = parse_qs(link.query)
    (ticket,) = query["gpupool_token"]
    assert query["token"] == ["of jupyter"]
    (route,) = routes(world, gateway)
    assert (route.access, route.tokens, route.local) == (RouteAccess.TOKEN, (secret_hash(ticket),), True)
    (replica,) = route.replicas
    assert (replica.agent, replica.key, replica.direct) == ("/run/agent.sock", world.program(work), False)
    here = urlsplit(open_it(world, gateway, work, here=True).url)
    assert here.hostname == f"{work.id}-0-{PORT}.localhost"
    assert len(routes(world, gateway)[0].tokens) == 2


def test_routes_are_published_for_the_first_ticket_and_withdrawn_after_the_last(
    world: World, gateway: FakeGateway
) -> None:
    async def story() -> None:
        work = await board(world)
        await world.pass_time(60)
        idle = len(gateway.tables)
        await world.pass_time(60)
        assert len(gateway.tables) == idle, "there is nothing to publish"
        async with asyncio.timeout(PUBLISH_TIMEOUT_S / 2):
            await world.services.open_ports.open(ANN, work.id, 0, PORT, here=False)
        assert len(gateway.tables[-1]) == 1
        await world.pass_time(TICKET_LIFETIME_S + 3)
        assert not gateway.tables[-1]

    world.do(story())


def test_only_users_who_may_attach_get_a_ticket(world: World, gateway: FakeGateway) -> None:
    work = world.do(board(world))
    ports = world.services.open_ports

    def refuses(actor: Actor, port: int, code: ErrorCode) -> None:
        world.do(refused(lambda: ports.open(actor, work.id, 0, port, here=False), code))

    for actor in (BOB, replace(ANN, role=Role.VIEWER)):
        refuses(actor, PORT, ErrorCode.FORBIDDEN)
    refuses(ANN, 22, ErrorCode.WRONG_STATE)
    gateway.domain = None
    refuses(ANN, PORT, ErrorCode.UNSUPPORTED)


def test_ticket_ends_after_its_time_with_its_workload_and_with_its_user(world: World, gateway: FakeGateway) -> None:
    access = world.services.access
    work = world.do(board(world))
    open_it(world, gateway, work)
    world.clock.at += TICKET_LIFETIME_S + 1
    assert routes(world, gateway) == []
    open_it(world, gateway, work)
    world.do(access.put_user(ADMIN, "ann", {"disabled": True}))
    assert routes(world, gateway) == []
    world.do(access.put_user(ADMIN, "ann", {"disabled": False}))
    assert routes(world, gateway) == []  # it is not valid again
    open_it(world, gateway, work)
    world.do(world.end(work))
    assert routes(world, gateway) == []


def test_ticket_ends_with_the_token_and_the_role_of_its_user(world: World, gateway: FakeGateway) -> None:
    access = world.services.access
    work = world.do(board(world))
    world.do(access.put_user(ADMIN, "mia", {"role": Role.ADMIN}))
    open_it(world, gateway, work, Actor("mia", Role.ADMIN, "token x"))
    assert routes(world, gateway)
    world.do(access.put_user(ADMIN, "mia", {"role": Role.MEMBER}))
    assert routes(world, gateway) == []
    token, secret = world.do(access.create_token(ADMIN, user="ann", role=None, expires_in_s=1000))
    open_it(world, gateway, work, world.do(access.actor_for_token(secret)))
    assert routes(world, gateway)
    world.do(access.revoke_token(ADMIN, token.id))
    assert routes(world, gateway) == []


def test_tickets_of_a_user_are_limited(world: World, gateway: FakeGateway) -> None:
    work = world.do(board(world))
    for _ in range(MAX_TICKETS_OF_A_USER + 3):
        open_it(world, gateway, work)
    assert len(routes(world, gateway)[0].tokens) == MAX_TICKETS_OF_A_USER
