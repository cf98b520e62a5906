"""The home page: what each role sees first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from pool_world import ADMIN, ANN, BOB, World, world_in
from web_harness import Site, words

from gpupool.domain.people.access import Project, Role
from gpupool.domain.work.workload import Workload

ANN_UID, BOB_UID, EVE_UID, LEA_UID = 1001, 1002, 1003, 1004


@pytest.fixture
def site(tmp_path: Any) -> Iterator[Site]:
    """Ann and Bob are members, Lea manages the project vision, Eve is a viewer."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path) as world:
        people = (
            ("ann", ANN_UID, Role.MEMBER),
            ("bob", BOB_UID, Role.MEMBER),
            ("eve", EVE_UID, Role.VIEWER),
            ("lea", LEA_UID, Role.MANAGER),
        )
        for name, uid, role in people:
            world.do(world.services.access.put_user(ADMIN, name, {"uid": uid, "role": role}))
        project = Project("vision", quota_permille=1500, members=("ann", "lea"))
        world.do(world.services.access.create_project(ADMIN, project))
        yield Site(world)


def submit(site: Site, **body: Any) -> Workload:
    return site.world.do(site.world.submit(**body))


def section(html: str, name: str) -> str:
    """Return the words of one section."""
    return words(html.split(f'<section class="card" aria-labelledby="{name}">')[1].split("</section>", maxsplit=1)[0])


def test_member_sees_own_work(site: Site) -> None:
    world: World = site.world
    failing = submit(site, actor=ANN, name="wrong", restart="never", gpus={"fraction": 0.1})
    world.do(world.end(failing, 3))
    submit(site, actor=ANN, name="trains", project="vision", gpus={"fraction": 0.5})
    submit(site, actor=BOB, name="bobs", gpus={"count": 1})
    submit(site, actor=ANN, name="later", gpus={"count": 2})
    site.get("/home", ANN_UID)
    html = site.get("/home", ANN_UID).text
    assert "trains" in section(html, "running")
    assert "bobs" not in html
    assert "later" in section(html, "waiting")
    assert "free" in section(html, "waiting")
    assert "exited with status 3" in section(html, "failed")
    assert "gpupool logs wrong" in section(html, "failed")
    assert "vision 0.5 0.5 1.5 1" in section(html, "quota")
    assert "view=" not in html, "a member has one view"


def test_own_stops_are_no_failures_and_those_of_others_are(site: Site) -> None:
    mine, taken = (submit(site, actor=ANN, name=name, gpus={"fraction": 0.1}) for name in ("mine", "taken"))
    site.world.do(site.world.services.workloads.stop(ANN, mine.id))
    site.world.do(site.world.services.workloads.stop(ADMIN, taken.id))
    site.world.do(site.world.settle())
    failed = section(site.get("/home", ANN_UID).text, "failed")
    assert f"stopped by {ADMIN.user}" in failed
    assert "mine" not in failed


def test_failures_of_the_day_before_yesterday_are_gone(site: Site) -> None:
    failing = submit(site, actor=ANN, name="old", restart="never", gpus={"fraction": 0.1})
    site.world.do(site.world.end(failing, 3))
    site.world.do(site.world.pass_time(90_000))
    assert "Nothing has failed." in section(site.get("/home", ANN_UID).text, "failed")


def test_idle_gpus_are_listed(site: Site) -> None:
    submit(site, actor=ANN, name="sleeper", gpus={"fraction": 0.25}, idle_timeout="1h")
    assert 'id="idle"' not in site.get("/home", ANN_UID).text
    site.world.do(site.world.pass_time(700))
    html = site.get("/home", ANN_UID).text
    assert "sleeper ann 0.25" in section(html, "idle")
    assert "idle for" in section(html, "running")


def test_manager_and_administrator_have_views(site: Site) -> None:
    submit(site, actor=ANN, name="trains", project="vision", gpus={"fraction": 0.5})
    submit(site, actor=BOB, name="bobs", gpus={"fraction": 0.1})
    team = site.get("/home", LEA_UID).text
    assert "trains ann, vision" in section(team, "running")
    assert "bobs" not in team
    assert "trains" not in section(site.get("/home?view=mine", LEA_UID).text, "running")
    assert "bobs" not in site.get("/home?view=pool", LEA_UID).text, "no view of her role"
    pool = site.get("/home").text
    assert "trains" in pool
    assert "bobs" in pool
    assert site.get("/home?view=pool", EVE_UID).status_code == 200
    assert site.get("/home?view=nonsense").status_code in {400, 422}


def test_waiting_work_is_in_scheduling_order(site: Site) -> None:
    for name in ("first", "second", "third"):
        submit(site, actor=ANN, name=name, gpus={"count": 2})
    submit(site, actor=ANN, name="urgent", gpus={"count": 2}, priority=50)
    shown = section(site.get("/home").text, "waiting")
    places = [shown.index(name) for name in ("urgent", "second", "third")]
    assert places == sorted(places), "the next start is on top, also when the list is cut"


def test_link_to_all_work_of_one_managed_project_names_it(site: Site) -> None:
    for number in range(27):
        submit(site, actor=ANN, name=f"later{number}", project="vision", gpus={"count": 2})
    assert 'href="/workloads?state=queued&amp;project=vision"' in site.get("/home", LEA_UID).text
