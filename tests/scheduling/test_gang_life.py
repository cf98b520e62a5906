"""Gangs over time: holds and backfill for waiting gangs, and gangs that lose members."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from scheduling_world import NOW, World, as_pending, lines, pendings, world

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.holds.starvation import Starvation, _row_ends, slot_ends
from gpupool.scheduling.scheduler import LeaseReleased, PendingAdded, PendingRemoved
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.values import EvictionKind, HoldKind, ReplicaKey


def add(w: World, line: str) -> None:
    for asked in pendings(line):
        waiting = replace(asked, queued_at=w.now)
        w.waiting[waiting.key] = waiting
        w.scheduler.apply(PendingAdded(waiting, w.now))


def end(w: World, name: str, index: int = 0, ran_s: float | None = None) -> None:
    w.running.pop((WorkloadId(name), index), None)
    w.scheduler.apply(LeaseReleased((WorkloadId(name), index), ran_s))


def fail(w: World, name: str, index: int, back_off_s: float = 0.0) -> None:
    """Let a member fail; it is queued again."""
    key = (WorkloadId(name), index)
    again = as_pending(w.scheduler.demand.running[key], w.now)
    end(w, name, index)
    w.scheduler.apply(PendingAdded(replace(again, not_before=w.now + back_off_s), w.now))


def learn(w: World, seconds: float, runs: int = 9, project: str = "red", user: str = "ann") -> None:
    """Record a number of one-GPU runs of a length."""
    for _ in range(runs):
        w.scheduler.demand.ordering.past.add(project, user, 1000, seconds)


def reserved(w: World) -> list[str]:
    return sorted(f"{hold.workload}@{hold.node}" for hold in w.scheduler.holds if hold.kind is HoldKind.RESERVED)


# --- starving


def test_starving_gang_starts_despite_stream_of_small_jobs() -> None:
    """Two one-GPU jobs arrive each minute and run for four: without a hold, four GPUs are never free together."""
    w = world("a 4xT4", "big red 1 gang=4", "r1 blue 1 on a:0 end=60 age=1", reserve_after_s=300)
    ends: dict[str, float] = {}
    for minute in range(60):
        for name in [name for name, at in ends.items() if at <= w.now]:
            end(w, name)
            del ends[name]
        if minute == 1:
            end(w, "r1")
        add(w, f"s{minute}a blue 1 max=240; s{minute}b blue 1 max=240")
        w.step()
        for grant in w.last.grants:
            if grant.workload.startswith("s"):
                ends[str(grant.workload)] = w.now + 240
        if any(grant.workload == "big" for grant in w.last.grants):
            break
        w.now += 60
    assert w.now <= NOW + 300 + 2 * 240 + 60, "it waits until it starves, and then for those who ran at that time"
    assert "big@a big@a big@a big@a" in w.places()


def test_hold_of_gang_begins_at_one_time_for_all_members() -> None:
    w = world(
        "a 1xT4; b 1xT4; c 1xT4",
        "big red 1 gang=2 wait=900",
        "r1 blue 1 on a:0 end=100; r2 blue 1 on b:0 end=200; r3 blue 1 on c:0 end=300",
    )
    w.step()
    assert reserved(w) == ["big@a", "big@b"]
    assert {hold.starts_at for hold in w.scheduler.holds} == {NOW + 200}


def test_hold_of_elastic_gang_covers_its_minimum() -> None:
    w = world("a 4xT4", "big red 1 gang=2-4 wait=900", "r1 blue 4 on a:0123 end=100")
    w.step()
    assert reserved(w) == ["big@a", "big@a"]


def test_strict_gang_waits_for_one_zone() -> None:
    w = world(
        "a 1xT4 zone=x; b 1xT4 zone=y; c 1xT4 zone=y",
        "big red 1 gang=2 wait=900 within=zone!",
        "r1 blue 1 on a:0 end=10; r2 blue 1 on b:0 end=200; r3 blue 1 on c:0 end=300",
    )
    w.step()
    assert reserved(w) == ["big@b", "big@c"]
    assert {hold.starts_at for hold in w.scheduler.holds} == {NOW + 300}


def test_at_most_four_gangs_get_a_hold() -> None:
    gangs = "; ".join(f"g{n} red 1 gang=2 wait={900 - n}" for n in range(5))
    nodes = "; ".join(f"n{n} 2xT4" for n in range(5))
    held = "; ".join(f"r{n} blue 2 on n{n}:01 end={100 + n}" for n in range(5))
    w = world(nodes, gangs, held, reserved_part=1.0)
    for _ in range(6):  # one for each shape in a cycle
        w.step()
    assert len(reserved(w)) == 8
    assert "g4" not in {str(hold.workload) for hold in w.scheduler.holds}


def test_hold_is_created_again_after_node_is_lost() -> None:
    w = world(
        "a 2xT4; b 2xT4",
        "big red 1 gang=2 wait=900",
        "r1 blue 2 on a:01 end=100; r2 blue 2 on b:01 end=200",
    )
    w.step()
    assert reserved(w) == ["big@a", "big@a"]
    from gpupool.scheduling.scheduler import NodeRemoved

    w.scheduler.apply(NodeRemoved("a"))
    w.step()
    assert reserved(w) == ["big@b", "big@b"]


# --- backfill


WALL = "r1 blue 1 on a:0 end=1000 age=1"  # the other GPU of the node is free until then


def test_backfill_uses_work_that_usually_ends_in_time() -> None:
    w = world("a 2xT4", "big blue 1 gang=2 wait=900", WALL)
    learn(w, 300)
    w.step()
    add(w, "s1 red 1 train")
    w.now += 1
    w.step()
    assert w.places() == "r1@a s1@a"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("s1 red 1", "protected work cannot be corrected by eviction"),
        ("s1 red/bob 1 train", "nothing is known of that user, and the project's runs are too long"),
        ("s1 green 1 train", "nor of that project: the pool's are too long as well"),
    ],
)
def test_no_backfill_by_long_or_unknown_work(line: str, why: str) -> None:
    w = world("a 2xT4", "big blue 1 gang=2 wait=900", WALL)
    learn(w, 300)
    learn(w, 5000, runs=30, user="eve")
    w.step()
    add(w, line)
    w.now += 1
    w.step()
    assert w.places() == "r1@a", why


def test_few_past_runs_give_no_prediction() -> None:
    w = world("a 2xT4", "big blue 1 gang=2 wait=900", WALL)
    learn(w, 300, runs=2)
    w.step()
    add(w, "s1 red 1 train")
    w.now += 1
    w.step()
    assert w.places() == "r1@a"


def test_backfill_needs_short_90th_percentile() -> None:
    w = world("a 2xT4", "big blue 1 gang=2 wait=900", WALL)
    learn(w, 300, runs=16)
    learn(w, 5000, runs=4)
    w.step()
    add(w, "s1 red 1 train")
    w.now += 1
    w.step()
    assert w.places() == "r1@a"


def backfilled(runs_s: float = 300) -> World:
    w = world("a 2xT4", "big blue 1 gang=2 wait=900", WALL)
    learn(w, runs_s)
    w.step()
    add(w, "s1 red 1 train")
    w.now += 1
    w.step()
    assert w.places() == "r1@a s1@a"
    return w


def test_backfilled_work_is_evicted_when_only_it_blocks_the_hold() -> None:
    w = backfilled()
    w.now = NOW + 900  # far longer than predicted, but its end would help no workload
    w.step()
    assert not w.last.evictions
    w.now = NOW + 1000
    end(w, "r1")
    w.step()
    (eviction,) = w.last.evictions
    assert eviction.workload == "s1"
    assert eviction.kind is EvictionKind.BACKFILL
    assert "ran longer than predicted" in eviction.reason
    assert eviction.for_workload == "big"
    w.now += 1
    w.step()
    assert w.places() == "big@a big@a"


def test_backfilled_work_stays_within_its_prediction() -> None:
    w = backfilled(900)
    w.now = NOW + 500
    end(w, "r1")  # earlier than its limit
    w.step()
    assert not w.last.evictions
    assert w.last.wake_at == NOW + 901
    w.now = NOW + 901
    w.step()
    assert [eviction.workload for eviction in w.last.evictions] == ["s1"]


def test_work_that_ran_before_the_hold_is_not_backfill() -> None:
    w = world("a 2xT4", "big blue 1 gang=2 wait=600", f"{WALL}; r2 red 1 on a:1 train age=5000")
    learn(w, 300)
    w.step()
    assert len(reserved(w)) == 2
    w.now = NOW + 149
    end(w, "r1")
    w.step()
    assert not w.last.evictions


def test_predicted_ends_set_the_time_of_a_hold() -> None:
    w = world("a 2xT4", "big blue 1 gang=2 wait=700", "r1 red 1 on a:0 train age=100; r2 red 1 on a:1 train age=50")
    learn(w, 300)
    w.step()
    assert {hold.starts_at for hold in w.scheduler.holds} == {NOW + 250}


# --- stale gangs


def gang_of_two(**options: float) -> World:
    w = world("a 2xT4", "g red 1 gang=2 train", **options)
    w.step()
    assert w.places() == "g@a g@a"
    return w


def test_gang_below_its_minimum_is_queued_again() -> None:
    w = gang_of_two(stale_gang_s=60)
    fail(w, "g", 1, back_off_s=300)
    w.now += 1
    w.step()
    assert w.last.wake_at == NOW + 61
    w.now = NOW + 60
    w.step()
    assert not w.last.evictions
    w.now = NOW + 61
    w.step()
    (eviction,) = w.last.evictions
    assert eviction.kind is EvictionKind.STALE_GANG
    assert eviction.key == (WorkloadId("g"), 0)
    assert eviction.reason == "Its gang needs at least 2 members; only 1 run, and the others found no free GPUs."
    w.now = NOW + 305
    w.step()
    assert w.places() == "g@a g@a", "together again, once the back-off is over"


def test_returning_member_keeps_gang_running() -> None:
    w = gang_of_two(stale_gang_s=60)
    fail(w, "g", 1, back_off_s=30)
    for _ in range(40):
        w.now += 10
        w.step()
        assert not w.last.evictions
    assert w.places() == "g@a g@a"


def test_gang_is_not_stale_while_victims_end_for_its_member() -> None:
    w = world("a 2xT4", "g red 1 gang=2 train prio=5", stale_gang_s=60)
    w.step()
    fail(w, "g", 1, back_off_s=20)
    add(w, "thief red 1 train")
    w.now += 1
    w.step()
    assert w.places() == "g@a thief@a"
    w.now += 100
    decisions = w.scheduler.decide(w.now)
    assert [(e.workload, e.kind) for e in decisions.evictions] == [("thief", EvictionKind.PREEMPT)]
    w.now += 100
    assert not w.scheduler.decide(w.now).evictions


def test_protected_gang_is_never_stale() -> None:
    w = world("a 2xT4", "g red 1 gang=2", stale_gang_s=60)
    w.step()
    fail(w, "g", 1, back_off_s=1000)
    for _ in range(10):
        w.now += 30
        w.step()
        assert not w.last.evictions


def test_optional_members_may_be_missing() -> None:
    w = world("a 4xT4", "g red 1 gang=2-4 train", stale_gang_s=60)
    w.step()
    for index in (1, 3):
        fail(w, "g", index, back_off_s=1000)
    for _ in range(10):
        w.now += 30
        w.step()
        assert not w.last.evictions


# --- joining


def test_joining_members_stay_in_zone_of_strict_gang() -> None:
    w = world("a 2xT4 zone=x; b 2xT4 zone=y", "g red 1 gang=2-4 train within=zone!")
    w.step()
    zone = {r.lease.node for r in w.running.values()}
    assert len(zone) == 1
    w.now += 1
    w.step()
    assert len(w.running) == 2, "the other zone is free, and not for it"


def test_joining_members_prefer_node_then_zone() -> None:
    w = world(
        "a 2xT4 zone=x; b 1xT4 zone=x; c 8xT4 zone=y",
        "g red 1 gang=2-4 within=zone",
        "r1 red 1 on b:0; r2 red 6 on c:234567",
    )
    w.step()
    assert w.places() == "g@a g@a g@c g@c r1@b r2@c"
    w = world(
        "a 3xT4 zone=x; b 1xT4 zone=x; c 8xT4 zone=y",
        "g red 1 gang=2-4 within=zone",
        "r0 red 1 on a:0; r1 red 1 on b:0; r2 red 8 on c:01234567",
    )
    w.step()
    assert w.places().startswith("g@a g@a")
    for name in ("r2", "r1", "r0"):
        end(w, name)
    w.now += 1
    w.step()
    w.now += 1
    w.step()
    assert w.places() == "g@a g@a g@a g@b"


# --- what must always hold


SIZES = st.sampled_from(("gang=2", "gang=3", "gang=1-3", "gang=2-4", "gang=2 within=zone!", "gang=3 within=zone", ""))
JOBS = st.tuples(
    st.sampled_from(("red", "blue")),
    st.sampled_from(("1", "2", "0.5")),
    SIZES,
    st.sampled_from(("train", "train", "", "train prio=2", "train max=50")),
)
EVENTS = st.one_of(JOBS, st.tuples(st.just("end"), st.integers(0, 30)), st.tuples(st.just("fail"), st.integers(0, 30)))


class Watch:
    """The running members of each gang, from decisions only, without asking the scheduler."""

    def __init__(self, w: World) -> None:
        self.w = w
        self.hurt: set[str] = set()  # gangs with a failed or ended member may be below their minimum

    def step(self) -> None:
        w = self.w
        before = {key for key, r in w.scheduler.demand.running.items() if not r.releasing}
        w.step()
        evicted = {eviction.key for eviction in w.last.evictions}
        started = {grant.key for grant in w.last.grants}
        for name in {str(key[0]) for key in started | evicted}:
            waiting = next(p for key, p in w.waiting.items() if key[0] == name)
            if waiting.gang is None:
                continue
            stay = {key for key in (before - evicted) | started if key[0] == name}
            assert len(stay) <= waiting.gang.most
            if name not in self.hurt or not stay & before:
                assert not stay or len(stay) >= waiting.gang.least, f"{name}: {len(stay)} are too few"
            if waiting.gang.strict:
                zones = {w.running[key].lease.node in "ab" for key in stay}
                assert len(zones) <= 1, f"{name} in two zones"

    def lose(self, number: int, *, again: bool) -> None:
        running: list[ReplicaKey] = sorted(self.w.running)
        if not running:
            return
        key = running[number % len(running)]
        self.hurt.add(str(key[0]))
        waiting = replace(self.w.waiting[key], queued_at=self.w.now, not_before=self.w.now + 15)
        end(self.w, str(key[0]), key[1])
        if again:
            self.w.scheduler.apply(PendingAdded(waiting, self.w.now))


@settings(max_examples=120, deadline=None)
@given(st.lists(EVENTS, max_size=14))
def test_no_gang_starts_or_stays_below_its_minimum(events: list[tuple[str, ...]]) -> None:
    w = world(
        "a 2xT4 zone=x; b 2xT4 zone=x; c 4xT4 zone=y",
        projects="red quota=3; blue quota=3",
        stale_gang_s=30,
        reserve_after_s=40,
        min_runtime_s=5,
    )
    watch = Watch(w)
    note(repr(events))
    for number, event in enumerate(events):
        if event[0] in {"end", "fail"}:
            watch.lose(int(event[1]), again=event[0] == "fail")
        else:
            project, wanted, size, more = event
            add(w, f"j{number} {project} {wanted} {size} {more}")
        watch.step()
        w.now += 20
    for _ in range(6):
        watch.step()
        w.now += 20
    for key in list(w.scheduler.demand.running):
        w.scheduler.apply(LeaseReleased(key))
    for key in list(w.scheduler.demand.pending):
        w.scheduler.apply(PendingRemoved(key))
    w.scheduler.decide(w.now)
    demand = w.scheduler.demand
    assert not demand.gangs.short
    assert demand.gangs == type(demand.gangs)(), "nothing is left of gangs that are gone"
    assert not demand.project_queues
    assert not lines("; ".join(map(str, demand.shape_projects)))


RUNS = st.tuples(
    st.sampled_from(("red/ann", "red/bob", "blue")),
    st.sampled_from(("train", "train unsaved", "")),
    st.sampled_from(("", "end=-5", "end=50", "end=500")),
    st.sampled_from((10, 90, 400)),
    st.sampled_from(("", "releasing")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(RUNS, max_size=8), st.sampled_from((0, 100, 300)))
def test_free_times_are_equal_for_one_gpu_and_for_all(runs: list[tuple[str, str, str, int, str]], usual_s: int) -> None:
    held = "; ".join(
        f"r{n} {who} 1 on {'ab'[n // 4]}:{n % 4} {kind} {limit} age={age} {leaving}"
        for n, (who, kind, limit, age, leaving) in enumerate(runs)
    )
    w = world("a 4xT4; b 4xT4", running_=held)
    if usual_s:
        learn(w, usual_s)
    s = w.scheduler
    session = SchedulingSession(s.placer, s.demand, NOW, s.settings)
    starvation = Starvation(session, s.settings)
    together = slot_ends(starvation)
    for row in s.cluster.rows.values():
        assert together[row].tolist() == _row_ends(starvation, row).tolist()
    session.close()


def test_past_runs_predict_the_end_of_work_that_saves() -> None:
    w = world("a 2xT4", running_="r1 red/ann 1 on a:0 train; r2 red/ann 1 on a:1 train unsaved")
    learn(w, 1e6)
    s = w.scheduler
    session = SchedulingSession(s.placer, s.demand, NOW, s.settings)
    first, second = slot_ends(Starvation(session, s.settings))[0].tolist()
    assert NOW < first < NOW + 1e6
    assert second == inf, "it could not be evicted if it ran longer"
    session.close()
