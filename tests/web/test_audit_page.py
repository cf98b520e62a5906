"""The record: filters, pages, links and the CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from html import unescape
from urllib.parse import urlencode

import pytest
import structlog
from pool_world import ADMIN, ANN, BEGIN, world_in
from web_harness import Site, words

from gpupool.domain.events import Event, Reason
from gpupool.domain.people.access import Project
from gpupool.services.ports.store import ChangeSet
from gpupool.web.kit.events import target_page

MEMBER_UID = 4711


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a site with 1,200 changes of a project, all at one moment, and an earlier workload of ann's."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path_factory.mktemp("audit")) as world:

        async def story() -> None:
            await world.services.access.actor_for_uid(0)
            await world.services.access.create_project(ADMIN, Project("red"))
            await world.submit(ANN, name="train-1")
            await world.services.nodes.cordon(ADMIN, "here", "=1+1")
            world.clock.at += 3600
            assert world.store is not None
            at, target = world.clock.at, "project red"
            changes = [Event(at, "root", Reason.CHANGED, f"note {number}", target=target) for number in range(1_200)]
            await world.store.commit(ChangeSet(events=tuple(changes)))

        world.do(story())
        yield Site(world)


def rows(site: Site, **filters: str) -> list[dict[str, str]]:
    text = site.get(f"/audit?{urlencode({**filters, 'format': 'csv'})}").text
    return list(csv.DictReader(io.StringIO(text)))


def test_events_link_to_their_objects(site: Site) -> None:
    page = site.get("/audit?actor=root&reason=CORDONED").text
    assert 'href="/nodes/here"' in page
    workload = site.world.do(site.world.get("train-1")).id
    about = site.get(f"/audit?target={workload}").text
    assert f'href="/workloads/{workload}"' in about
    assert "submitted train-1" in words(about)
    assert target_page("project a/b") == "/projects/a%2Fb"
    assert [target_page(text) for text in ("policy", "user ann", "", "cost rates", "warnings")] == [
        "/settings",
        "/users/ann",
        None,
        "/settings",
        "/settings",
    ]


def test_filters_select_events(site: Site) -> None:
    assert {row["actor"] for row in rows(site, actor="ann")} == {"ann"}
    assert {row["reason"] for row in rows(site, reason="CORDONED")} == {"CORDONED"}
    assert {row["concerns"] for row in rows(site, target="node here")} == {"node here"}
    early = rows(site, until="2027-01-15T08:30")
    late = rows(site, since="2027-01-15T08:30")
    assert (len(late), {row["concerns"] for row in late}) == (1_200, {"project red"})
    assert len(early) + len(late) == len(rows(site))
    assert BEGIN == 1_800_000_000.0, "the times above are those of the story"


def test_csv_has_all_matching_events_and_no_formulas(site: Site) -> None:
    found = rows(site, actor="root")
    assert [row["message"] for row in found[:2]] == ["note 1199", "note 1198"]
    assert len(found) == len({row["id"] for row in found}) > 1_200
    [cordoned] = rows(site, reason="CORDONED")
    assert cordoned["message"] == "'=1+1"
    assert len(rows(site, actor="root", find="message:1199")) == 1, (
        "what is searched for in the table is downloaded alone"
    )


def test_older_events_have_a_link(site: Site) -> None:
    seen: list[str] = []
    url = "/audit?actor=root&find=note"
    for _ in range(4):
        page = site.get(url).text
        seen += [row["id"] for row in csv.DictReader(io.StringIO(site.get(f"{url}&format=csv").text))]
        older = [part.split('"')[0] for part in page.split('href="')[1:] if "Older events" in part.split("</a>")[0]]
        if not older:
            break
        url = unescape(older[0])
    assert len(seen) == len(set(seen)) == 1_200
    assert "Newest events" in page


@pytest.mark.parametrize("query", ["reason=NOPE", "since=soon", "until=9999999", "before=x", "page=-1", "actor=%00"])
def test_invalid_url_parameters_are_harmless(site: Site, query: str) -> None:
    assert site.get(f"/audit?{query}").status_code in {200, 422}


def test_all_users_read_audit_and_only_administrators_see_all_names(site: Site) -> None:
    assert site.get("/audit", MEMBER_UID).status_code == 200
    site.world.do(site.world.services.access.put_user(ADMIN, "zoe", {}))
    assert 'value="zoe"' in site.get("/audit?reason=CORDONED").text
    assert 'value="zoe"' not in site.get("/audit?reason=CORDONED", MEMBER_UID).text
