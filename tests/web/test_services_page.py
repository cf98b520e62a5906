"""The pages of services without a browser: what they show, and who may change a service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from pool_world import ADMIN, ANN, world_in
from web_harness import Site, words

from gpupool.domain.people.access import Role
from gpupool.domain.protocol.gateway_table import Load
from gpupool.domain.work.service import Service
from gpupool.specs.request import parse_request

ANN_UID, BOB_UID = 1001, 1002


@pytest.fixture
def people(tmp_path: Any) -> Iterator[Site]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path) as world:
        for name, uid in (("ann", ANN_UID), ("bob", BOB_UID)):
            world.do(world.services.access.put_user(ADMIN, name, {"uid": uid, "role": Role.MEMBER}))
        yield Site(world)


def new(site: Site) -> Service:
    async def story() -> Service:
        body = {"name": "chat", "kind": "service", "command": ["serve", "{port}"], "gpus": {"fraction": 0.25}}
        made = await site.world.services.serving.create(ANN, parse_request(body))
        for _ in range(4):
            site.world.agent.listening = {each.spec.key.partition(".")[0] for each in site.world.agent.running()}
            await site.world.pass_time(1.1)
        return made

    return site.world.do(story())


def test_list_and_details_show_replicas_requests_and_revisions(people: Site) -> None:
    assert "No services" in words(people.get("/services", ANN_UID).text)
    row = new(people)
    said = words(people.get("/services", ANN_UID).text)
    assert "chat /s/default/chat/" in said
    assert "1 of 1" in said
    said = words(people.get(f"/services/{row.id}", ANN_UID).text)
    assert "1 of 1 ready, limits 1" in said
    assert "chat-r1-0" in said
    assert "serve {port}" in said
    seen = people.get(f"/services/{row.id}", BOB_UID).text
    assert "chat-r1-0" in seen
    assert "serve {port}" not in seen
    assert f"/services/{row.id}/stop" not in seen


def test_problems_are_shown_in_the_list_and_on_the_page(people: Site) -> None:
    row = new(people)

    async def refuse() -> None:
        people.world.services.serving.controller.take(Load(row.key, 0, 0, 3, 3, refused=3))
        await people.world.pass_time(1.1)

    people.world.do(refuse())
    for page in ("/services", f"/services/{row.id}"):
        assert "equests refused: 3 were answered with 503" in words(people.get(page, ANN_UID).text)


def test_forms_scale_stop_and_delete(people: Site) -> None:
    row = new(people)
    page = f"/services/{row.id}"
    assert people.post(f"{page}/scale", ANN_UID, page=page, replicas="0..3").status_code == 303
    scale = people.world.services.serving.get(ANN, "chat").scale
    assert (scale.least, scale.most) == (0, 3)
    assert people.post(f"{page}/scale", BOB_UID, page=page, replicas="9").status_code != 200
    assert people.world.services.serving.get(ANN, "chat").scale.most == 3
    people.post(f"{page}/stop", ANN_UID, page=page)
    assert people.world.services.serving.get(ANN, "chat").stopped
    assert "stopped" in words(people.get(page, ANN_UID).text)
