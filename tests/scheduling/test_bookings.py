"""Reserved nodes: placement before and during a reservation, evictions for it, and wait reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_world import NOW, World, node, pending, world

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.reservation import Reservation
from gpupool.scheduling.explain.wait_reason import Explanation, WaitCode
from gpupool.scheduling.scheduler import LeaseTaken, NodeChanged, PendingAdded, ReservationChanged, ReservationRemoved
from gpupool.scheduling.values import EvictionKind

HOUR = 3600.0


def reserved(
    w: World, nodes: str = "a", begin: float = 0.0, end: float = HOUR, lead: float = 600.0, **who: str
) -> Reservation:
    made = Reservation(
        id="b1",
        name="class",
        nodes=tuple(nodes.split(",")),
        starts_at=NOW + begin,
        ends_at=NOW + end,
        projects=tuple(who.get("project", "").split()),
        users=tuple(who.get("user", "").split()),
        lead_s=600.0,
    )
    w.scheduler.apply(ReservationChanged(made))
    return made


def why(w: World, name: str) -> Explanation:
    found = w.scheduler.explain((WorkloadId(name), 0), w.now)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("begin", "who", "waiting", "places"),
    [
        (0, {"project": "red"}, "p1 red 1", "p1@a"),
        (0, {"project": "red"}, "p1 blue 1", ""),
        (0, {"user": "bob"}, "p1 blue/bob 1; p2 red/ann 1", "p1@a"),
        (0, {}, "p1 red 1 train", ""),
        (0, {"project": "red"}, "p1 blue 1 max=1", ""),
        (900, {"project": "red"}, "p1 blue 1", "p1@a"),  # the reservation begins after the lead time
        (500, {"project": "red"}, "p1 blue 1", ""),
        (500, {"project": "red"}, "p1 blue 1 max=400", "p1@a"),
        (500, {"project": "red"}, "p1 blue 1 max=600", ""),
        (500, {"project": "red"}, "p1 red 1", "p1@a"),
        (500, {"project": "red"}, "p1 blue 1 train", "p1@a"),
        (200, {"project": "red"}, "p1 blue 1 train", ""),  # too short to be worth a start
        (-2 * HOUR, {"project": "red"}, "p1 blue 1", "p1@a"),  # it is over
    ],
)
def test_only_admitted_or_short_work_is_placed_on_reserved_node(
    begin: float, who: dict[str, str], waiting: str, places: str
) -> None:
    w = world("a 1xT4", waiting)
    reserved(w, begin=begin, end=begin + HOUR, **who)
    w.settle()
    assert w.places() == places


def test_node_is_available_after_reservation_and_not_within_its_lead() -> None:
    w = world("a 1xT4", "p1 blue 1")
    reserved(w, begin=0, end=100, project="red")
    w.settle()
    assert w.places() == ""
    assert w.last.wake_at is not None
    assert w.last.wake_at <= NOW + 100
    w.now = NOW + 100
    w.settle()
    assert w.places() == "p1@a"
    v = world("a 1xT4", "p1 blue 1 later=50")
    reserved(v, begin=640, end=HOUR, project="red")
    v.now = NOW + 50
    v.settle()
    assert v.places() == "", "the lead of ten minutes has begun"


def test_cancelled_reservation_blocks_no_placement() -> None:
    w = world("a 1xT4", "p1 blue 1")
    made = reserved(w)
    w.settle()
    w.scheduler.apply(ReservationRemoved(made.id))
    w.settle()
    assert w.places() == "p1@a"


def test_admitted_work_prefers_the_reserved_node() -> None:
    w = world("a 4xT4; b 1xT4", "p1 red 1; p2 blue 1")
    reserved(w, "a", project="red")
    w.settle()
    assert w.places() == "p1@a p2@b"


def test_training_is_evicted_before_reservation_and_placed_on_other_node() -> None:
    w = world("a 1xT4; b 1xT4", running_="r1 blue 1 on a:0 train; r2 red 1 on b:0 train end=2000")
    w.scheduler.apply(LeaseTaken(replace(w.running[WorkloadId("r1"), 0], grace_s=60.0)))
    reserved(w, "a,b", begin=1000, end=2 * HOUR, project="red")
    assert not w.step()
    assert w.last.wake_at == NOW + 400, "the lead begins"
    w.now = NOW + 939
    assert w.step()
    assert w.evicted == ["r1"]
    [eviction] = w.last.evictions
    assert eviction.kind is EvictionKind.BOOKING
    assert "class" in eviction.reason
    w.settle()
    assert w.places() == "r2@b"
    w.scheduler.apply(NodeChanged(node("c 1xT4")))
    w.settle()
    assert w.places() == "r1@c r2@b"


def test_protected_work_and_work_that_ends_before_reservation_is_not_evicted() -> None:
    w = world("a 2xT4", running_="r1 blue 1 on a:0; r2 blue 1 on a:1 train end=900")
    reserved(w, begin=1000, end=HOUR, project="red")
    w.now = NOW + 999
    assert not w.step()
    w.now = NOW + 1001
    assert not w.step()


def test_no_eviction_on_node_reserved_for_other_project() -> None:
    w = world("a 1xT4", "p1 red 1", "r1 blue 1 on a:0 train", "red quota=1; blue quota=0")
    reserved(w, project="blue")
    w.settle()
    assert w.places() == "r1@a"


def test_wait_reason_names_end_of_reservation() -> None:
    w = world("a 1xT4", "p1 blue 1")
    reserved(w, begin=-600, end=3000, project="red")
    w.settle()
    told = why(w, "p1")
    assert told.code is WaitCode.BOOKED
    assert "reserved for others (class) for another 49m" in told.sentence
    assert told.numbers["ends_at"] == NOW + 3000
    v = world("a 1xT4", "p1 blue 1")
    reserved(v, begin=300, end=HOUR)
    v.settle()
    told = why(v, "p1")
    assert told.code is WaitCode.BOOKED
    assert any("time limit" in text for text in told.would_help)


def test_node_that_joins_later_is_reserved() -> None:
    w = world("b 1xT4", "")
    reserved(w, "a")
    w.scheduler.apply(NodeChanged(node("a 1xT4")))
    w.scheduler.apply_all(PendingAdded(pending(f"p{i} blue 1"), NOW) for i in (1, 2))
    w.settle()
    assert w.places() == "p1@b"


WORK = st.lists(
    st.builds(
        "{0}/{1} {2} {3} {4} {5}".format,
        st.sampled_from(["red", "blue"]),
        st.sampled_from(["ann", "bob"]),
        st.sampled_from(["0.5", "1", "2"]),
        st.sampled_from(["", "train"]),
        st.sampled_from(["", "max=50", "max=2000"]),
        st.sampled_from(["", "prio=5", "later=450"]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(WORK)
def test_only_admitted_work_starts_during_reservation(work: list[str]) -> None:
    w = world(
        "a 2xT4; b 2xT4", ";".join(f"p{i} {line}" for i, line in enumerate(work)), "", "red quota=2; blue quota=2"
    )
    reservation = reserved(w, "a", begin=400, end=900, project="red", user="bob")
    for t in (0, 100, 390, 399, 400, 401, 500, 899, 900, 901):
        w.now = NOW + t
        before = set(w.scheduler.demand.running)
        for _ in range(8):
            if not w.step():
                break
        for key, replica in w.scheduler.demand.running.items():
            lease, ends = replica.lease, replica.expected_end
            if lease.node != "a" or reservation.admits(lease.project, lease.user) or not 400 <= t < 900:
                continue
            assert key in before, "nobody else starts there"
            assert not replica.preemptible or (ends is not None and ends <= reservation.starts_at), "training has gone"
    ready = [r for r in w.scheduler.demand.pending.values() if r.request.permille == 1000]
    assert not (ready and len(w.scheduler.demand.running) == 0), "when it is over all is as without it"
