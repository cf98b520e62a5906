"""Bookings: drawn in time, made and cancelled by roles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from pool_world import ADMIN, ANN, BEGIN, world_in
from web_harness import Site, words

from gpupool.domain.nodes.reservation import Reservation
from gpupool.domain.people.access import Project
from gpupool.web.pages.reservations import schedule

MEMBER_UID = 4711
# BEGIN is 2027-01-15 08:00 UTC.
FORM = {
    "name": "CS101",
    "nodes": "here",
    "starts": "2027-01-16T09:00",
    "length": "2h",
    "projects": "class",
    "lead": "0",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with world_in(tmp_path_factory.mktemp("bookings")) as world:

        async def story() -> None:
            await world.services.access.create_project(ADMIN, Project("class"))
            await world.submit(ANN, name="long-training")
            await world.submit(ANN, name="session", kind="interactive")

        world.do(story())
        yield Site(world)


@pytest.fixture(autouse=True)
def none_left(site: Site) -> Iterator[None]:
    yield
    for reservation in reservations(site):
        site.world.do(site.world.services.reservations.cancel(ADMIN, reservation.id))


def reservations(site: Site) -> list[Reservation]:
    return list(site.world.do(site.world.services.reservations.list_all()))


def test_empty_page_explains_how_to_reserve(site: Site) -> None:
    assert "gpupool reserve" in words(site.get("/bookings").text)


def test_reservation_result_names_affected_workloads(site: Site) -> None:
    done = site.post("/bookings", **FORM)
    assert (done.status_code, done.headers["location"]) == (303, "/bookings")
    [made] = reservations(site)
    assert (made.name, made.nodes, made.projects, made.lead_s) == ("CS101", ("here",), ("class",), 0.0)
    assert (made.starts_at - BEGIN, made.ends_at - made.starts_at) == (25 * 3600, 7200)
    said = words(site.get("/bookings", MEMBER_UID).text)
    assert "CS101 ◷ upcoming here" in said
    assert site.post(f"/bookings/{made.id}/cancel").status_code == 303
    assert reservations(site) == []


def test_nodes_are_chosen_and_maintenance_admits_no_work(site: Site) -> None:
    asked = {**FORM, "nodes": "", "gpus": "1", "projects": "", "maintenance": "on", "starts": "2027-01-15T07:59"}
    assert site.post("/bookings", **asked).status_code == 303
    [made] = reservations(site)
    assert (made.nodes, made.maintenance) == (("here",), True)
    assert "● active" in words(site.get("/bookings").text)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": "nowhere"}, "There is no node 'nowhere'"),
        ({"length": ""}, "A duration is required."),
        ({"starts": "soon"}, "'soon' is not a time."),
        ({"gpus": "2"}, "A reservation needs node names or a number of GPUs."),
        ({"projects": ""}, "A reservation is for projects and users, or for maintenance."),
        ({"name": ""}, "name:"),
        ({"starts": "2020-01-01T00:00"}, "ends in the future"),
    ],
)
def test_invalid_reservation_form_is_shown_again(site: Site, changes: dict[str, str], said: str) -> None:
    answer = site.post("/bookings", **{**FORM, **changes})
    assert answer.status_code == 422
    assert said in words(answer.text)
    assert 'value="2h"' in answer.text or "length" in changes
    assert reservations(site) == []


def test_overlapping_reservations_of_a_node_are_refused(site: Site) -> None:
    assert site.post("/bookings", **FORM).status_code == 303
    again = site.post("/bookings", **FORM)
    assert (again.status_code, "ALREADY_BOOKED" in again.text) == (422, True)


def test_member_can_neither_reserve_nor_cancel(site: Site) -> None:
    site.post("/bookings", **FORM)
    [made] = reservations(site)
    assert 'method="post"' not in site.get("/bookings", MEMBER_UID).text.partition("<main")[2]
    assert site.post("/bookings", MEMBER_UID, **{**FORM, "starts": "2027-01-20T09:00"}).status_code == 403
    assert site.post(f"/bookings/{made.id}/cancel", MEMBER_UID).status_code == 403
    assert reservations(site) == [made]


def test_timeline_covers_all_reservations() -> None:
    def reservation(starts_at: float, ends_at: float) -> Reservation:
        return Reservation("b1", "x", ("n",), starts_at, ends_at, projects=("p",))

    found = schedule([reservation(900.0, 1_100.0), reservation(1_500.0, 1_900.0)], 1_000.0)
    assert [line.state for line in found.lines] == ["active", "upcoming"]
    span = 1_000.0 + 3_600.0 - 900.0  # an hour at least
    assert (found.ticks[0], found.ticks[-1]) == (900.0, 4_600.0)
    assert found.now == pytest.approx(100.0 / span * 1000, abs=0.1)
    assert found.lines[1].x == pytest.approx(600.0 / span * 1000, abs=0.1)
    assert found.lines[1].width == pytest.approx(400.0 / span * 1000, abs=0.1)
    assert schedule([], 5.0).lines == ()
