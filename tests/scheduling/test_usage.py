"""Use over time: exact, forgotten by half-lives, the same after a restart, and in the order of users."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_world import NOW, node, pending, running, world

from gpupool.domain.access import Project
from gpupool.scheduling.scheduler import (
    LeaseReleased,
    LeaseTaken,
    NodeChanged,
    PastUse,
    PendingAdded,
    ProjectChanged,
    Scheduler,
)
from gpupool.scheduling.usage import Decay, Usage
from gpupool.scheduling.values import Settings

HOUR = 3600.0
DECAY = Decay(half_life_s=10 * HOUR, entry_s=60.0)

spans = st.lists(
    st.tuples(st.integers(1, 8000), st.floats(0, 40 * HOUR), st.floats(0, 40 * HOUR), st.booleans()), max_size=12
)


def by_steps(permille: int, start: float, end: float, at: float) -> float:
    """The integral by small rectangles, taken at their middles."""
    steps = 2000
    width = (end - start) / steps
    middles = (start + (i + 0.5) * width for i in range(steps))
    return sum(permille * width * 2.0 ** ((middle - at) / DECAY.half_life_s) for middle in middles)


@settings(max_examples=40, deadline=None)
@given(spans, st.floats(80 * HOUR, 120 * HOUR))
def test_use_is_the_decayed_integral_of_what_was_held(leases: list[tuple[int, float, float, bool]], now: float) -> None:
    usage, held, expected = Usage(DECAY), 0, 0.0
    for permille, start, length, ended in leases:
        usage.started(0, permille, start)
        end = start + length if ended else now
        expected += by_steps(permille, start, end, now)
        expected += permille * DECAY.entry_s * 2.0 ** ((start - now) / DECAY.half_life_s)
        if ended:
            usage.ended(0, permille, end)
        else:
            held += permille
    assert usage.average_of(0, held, now) * DECAY.weight_s == pytest.approx(expected, rel=1e-4, abs=1.0)


def test_it_halves_in_a_half_life_however_long_the_pool_has_run() -> None:
    usage = Usage(DECAY)
    usage.started(0, 1000, 0.0)
    usage.ended(0, 1000, HOUR)
    first = usage.average_of(0, 0, HOUR)
    assert usage.average_of(0, 0, 11 * HOUR) == pytest.approx(first / 2)
    for year in range(1, 30):  # the reference moves on
        usage.started(1, 1000, year * 8766 * HOUR)
        usage.ended(1, 1000, (year * 8766 + 1) * HOUR)
    assert usage.average_of(1, 0, (29 * 8766 + 1) * HOUR) == pytest.approx(first)


def test_who_holds_for_ever_has_held_that_on_average() -> None:
    usage = Usage(DECAY)
    usage.started(3, 2500, 0.0)
    assert usage.average_of(3, 2500, 300 * HOUR) == pytest.approx(2500)


def test_a_start_counts_before_it_has_lasted() -> None:
    usage = Usage(DECAY)
    usage.started(0, 1000, 5.0)
    assert usage.average_of(0, 1000, 5.0) * DECAY.weight_s == pytest.approx(1000 * 60.0)
    usage.started(0, -1000, 5.0)
    assert usage.average_of(0, 0, 5.0) == 0


def scheduler(nodes: str, *projects: Project, **options: float) -> Scheduler:
    made = Scheduler(Settings(decay=DECAY, **options))  # type: ignore[arg-type]
    made.apply(NodeChanged(node(nodes)))
    made.apply_all(ProjectChanged(project) for project in projects)
    return made


def test_a_scheduler_that_begins_anew_knows_the_same() -> None:
    """One sees leases come and go, the other is told what they came to."""
    nodes = {"a": node("a 4xT4")}
    seen, told = scheduler("a 4xT4"), scheduler("a 4xT4")
    first = running("r1 red/ann 1 on a:0 age=90000", nodes)
    second = running("r2 red/ann 1 on a:1 age=7000", nodes)
    seen.apply_all([LeaseTaken(first), LeaseTaken(second)])
    seen.apply(LeaseTaken(replace(first, releasing=True)))  # told again: not another start
    seen.apply(LeaseReleased(first.key, at=NOW - 30_000))
    ended = DECAY.lease_use(1000, NOW - 90_000, NOW - 30_000, NOW - 30_000)
    told.apply(PastUse("red", "ann", ended, NOW - 30_000))
    told.apply(LeaseTaken(second))
    [one], [other] = seen.standings(NOW).projects, told.standings(NOW).projects
    assert one.used_gpu_hours == pytest.approx(other.used_gpu_hours)
    expected = ended * 2.0 ** (-30_000 / DECAY.half_life_s) + DECAY.lease_use(1000, NOW - 7000, NOW, NOW)
    assert one.used_gpu_hours == pytest.approx(expected / 3_600_000)
    assert [u.used_gpu_hours for u in seen.standings(NOW).users] == pytest.approx([one.used_gpu_hours])


def granted(made: Scheduler) -> list[str]:
    return [str(grant.workload) for grant in made.decide(NOW).grants]


def test_the_user_who_held_less_lately_is_first() -> None:
    made = scheduler("a 1xT4")
    made.apply(PastUse("red", "ann", 1000 * 8 * HOUR, NOW))
    made.apply_all(PendingAdded(pending(line), NOW) for line in ("p1 red/ann 1 wait=90", "p2 red/ben 1 wait=10"))
    assert granted(made) == ["p2"]


def test_a_little_more_use_does_not_change_the_order_of_the_queue() -> None:
    made = scheduler("a 1xT4")
    made.apply(PastUse("red", "ann", 1000 * 600.0, NOW))
    made.apply_all(PendingAdded(pending(line), NOW) for line in ("p1 red/ann 1 wait=90", "p2 red/ben 1 wait=10"))
    assert granted(made) == ["p1"]


def test_a_burst_does_not_win_a_cycle() -> None:
    """Of two projects that never used anything one asks for everything at once."""
    made = scheduler("a 8xT4")
    lines = [f"b{i} burst/ann 1 wait=99" for i in range(8)] + [f"s{i} steady/ben 1 wait=1" for i in range(4)]
    made.apply_all(PendingAdded(pending(line), NOW) for line in lines)
    assert sorted(granted(made)) == ["b0", "b1", "b2", "b3", "s0", "s1", "s2", "s3"]


def test_a_burst_of_short_work_counts_by_its_starts() -> None:
    """What ended at once has used nothing, and yet the other project is next."""
    made = scheduler("a 1xT4", usage_weight=5.0)
    nodes = {"a": node("a 1xT4")}
    for i in range(300):
        short = running(f"b{i} burst/ann 1 on a:0 age={i}", nodes)
        made.apply_all([LeaseTaken(short), LeaseReleased(short.key, at=short.started_at)])
    assert made.standings(NOW).projects[0].used_gpu_hours == pytest.approx(300 * 60 / 3600, rel=0.01)
    made.apply_all(PendingAdded(pending(line), NOW) for line in ("p1 burst/ann 1 wait=90", "p2 calm/ben 1 wait=10"))
    assert granted(made) == ["p2"]


def test_standings_say_whose_turn_it_is_and_why() -> None:
    made = scheduler("a 4xT4", Project("red", 3000), Project("blue", 1000), Project("green", 0))
    nodes = {"a": node("a 4xT4")}
    made.apply(LeaseTaken(running("r1 red/ann 1 on a:0 train", nodes)))
    made.apply(LeaseTaken(running("r2 blue/ben 1 on a:1 train", nodes)))
    made.apply(LeaseTaken(running("r3 blue/ben 1 on a:2 train", nodes)))
    lines = ("p1 red/ann 1 train", "p2 blue/ben 1 train")
    made.apply_all(PendingAdded(pending(line), NOW) for line in lines)
    rows = [(p.position, p.project, p.reason) for p in made.standings(NOW).projects]
    assert rows == [
        (1, "red", "below quota by 2.00 GPU"),
        (2, "blue", "at its fair share"),
        (0, "green", "wants nothing"),
    ]


def test_an_odd_gpu_changes_hands_as_use_tells() -> None:
    """Endless work of two equals on three GPUs: who had one for long has had two as often, at few evictions."""
    w = world("a 3xT4", "; ".join(f"{p[0]}{i} {p} 1 train" for p in ("red", "blue") for i in range(3)))
    held = {"red": 0, "blue": 0}
    for _ in range(4 * 24):
        w.step()
        w.now += 3600
        for running_ in w.scheduler.demand.running.values():
            held[running_.lease.project] += 1
    assert abs(held["red"] - held["blue"]) < 4 * 24 / 3
    assert 1 <= len(w.evicted) <= 4
