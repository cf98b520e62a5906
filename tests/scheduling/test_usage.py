"""Decayed usage: exact, equal after a restart, and used for the order of users."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_world import NOW, node, pending, running, world

from gpupool.domain.people.access import Project
from gpupool.scheduling.policy import Settings
from gpupool.scheduling.scheduler import (
    LeaseReleased,
    LeaseTaken,
    NodeChanged,
    PastUse,
    PendingAdded,
    ProjectChanged,
    Scheduler,
)
from gpupool.scheduling.state.decayed_usage import Decay, Usage

HOUR = 3600.0
DECAY = Decay(half_life_s=10 * HOUR, entry_s=60.0)

spans = st.lists(
    st.tuples(st.integers(1, 8000), st.floats(0, 40 * HOUR), st.floats(0, 40 * HOUR), st.booleans()), max_size=12
)


def by_steps(permille: int, start: float, end: float, at: float) -> float:
    """Compute the integral with small rectangles at their midpoints."""
    steps = 2000
    width = (end - start) / steps
    middles = (start + (i + 0.5) * width for i in range(steps))
    return sum(permille * width * 2.0 ** ((middle - at) / DECAY.half_life_s) for middle in middles)


@settings(max_examples=40, deadline=None)
@given(spans, st.floats(80 * HOUR, 120 * HOUR))
def test_usage_is_decayed_integral_of_held_gpus(leases: list[tuple[int, float, float, bool]], now: float) -> None:
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


def test_usage_halves_in_a_half_life_at_any_pool_age() -> None:
    usage = Usage(DECAY)
    usage.started(0, 1000, 0.0)
    usage.ended(0, 1000, HOUR)
    first = usage.average_of(0, 0, HOUR)
    assert usage.average_of(0, 0, 11 * HOUR) == pytest.approx(first / 2)
    for year in range(1, 30):  # the time origin of the reference moves
        usage.started(1, 1000, year * 8766 * HOUR)
        usage.ended(1, 1000, (year * 8766 + 1) * HOUR)
    assert usage.average_of(1, 0, (29 * 8766 + 1) * HOUR) == pytest.approx(first)


def test_constant_use_converges_to_its_average() -> None:
    usage = Usage(DECAY)
    usage.started(3, 2500, 0.0)
    assert usage.average_of(3, 2500, 300 * HOUR) == pytest.approx(2500)


def test_start_counts_at_once() -> None:
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


def test_restarted_scheduler_has_equal_usage() -> None:
    """One scheduler sees all leases; the other gets their usage at its start."""
    nodes = {"a": node("a 4xT4")}
    seen, told = scheduler("a 4xT4"), scheduler("a 4xT4")
    first = running("r1 red/ann 1 on a:0 age=90000", nodes)
    second = running("r2 red/ann 1 on a:1 age=7000", nodes)
    seen.apply_all([LeaseTaken(first), LeaseTaken(second)])
    seen.apply(LeaseTaken(replace(first, releasing=True)))  # repeated event: not another start
    seen.apply(LeaseReleased(first.key, at=NOW - 30_000))
    ended = DECAY.lease_use(1000, NOW - 90_000, NOW - 30_000, NOW - 30_000)
    told.apply(PastUse("red", "ann", ended, NOW - 30_000))
    told.apply(LeaseTaken(second))
    [one], [other] = seen.share_report(NOW).projects, told.share_report(NOW).projects
    assert one.used_gpu_hours == pytest.approx(other.used_gpu_hours)
    expected = ended * 2.0 ** (-30_000 / DECAY.half_life_s) + DECAY.lease_use(1000, NOW - 7000, NOW, NOW)
    assert one.used_gpu_hours == pytest.approx(expected / 3_600_000)
    assert [u.used_gpu_hours for u in seen.share_report(NOW).users] == pytest.approx([one.used_gpu_hours])


def granted(made: Scheduler) -> list[str]:
    return [str(grant.workload) for grant in made.decide(NOW).grants]


def test_user_with_less_decayed_usage_is_first() -> None:
    made = scheduler("a 1xT4")
    made.apply(PastUse("red", "ann", 1000 * 8 * HOUR, NOW))
    made.apply_all(PendingAdded(pending(line), NOW) for line in ("p1 red/ann 1 wait=90", "p2 red/ben 1 wait=10"))
    assert granted(made) == ["p2"]


def test_small_difference_in_usage_does_not_change_order() -> None:
    made = scheduler("a 1xT4")
    made.apply(PastUse("red", "ann", 1000 * 600.0, NOW))
    made.apply_all(PendingAdded(pending(line), NOW) for line in ("p1 red/ann 1 wait=90", "p2 red/ben 1 wait=10"))
    assert granted(made) == ["p1"]


def test_burst_of_one_project_does_not_fill_a_cycle() -> None:
    """One of two projects without past usage requests everything at once."""
    made = scheduler("a 8xT4")
    lines = [f"b{i} burst/ann 1 wait=99" for i in range(8)] + [f"s{i} steady/ben 1 wait=1" for i in range(4)]
    made.apply_all(PendingAdded(pending(line), NOW) for line in lines)
    assert sorted(granted(made)) == ["b0", "b1", "b2", "b3", "s0", "s1", "s2", "s3"]


def test_burst_of_short_work_counts_by_its_starts() -> None:
    """Work that ended at once has no usage, and yet the other project is next."""
    made = scheduler("a 1xT4", usage_weight=5.0)
    nodes = {"a": node("a 1xT4")}
    for i in range(300):
        short = running(f"b{i} burst/ann 1 on a:0 age={i}", nodes)
        made.apply_all([LeaseTaken(short), LeaseReleased(short.key, at=short.started_at)])
    assert made.share_report(NOW).projects[0].used_gpu_hours == pytest.approx(300 * 60 / 3600, rel=0.01)
    made.apply_all(PendingAdded(pending(line), NOW) for line in ("p1 burst/ann 1 wait=90", "p2 calm/ben 1 wait=10"))
    assert granted(made) == ["p2"]


def test_standings_show_next_project_and_reason() -> None:
    made = scheduler("a 4xT4", Project("red", 3000), Project("blue", 1000), Project("green", 0))
    nodes = {"a": node("a 4xT4")}
    made.apply(LeaseTaken(running("r1 red/ann 1 on a:0 train", nodes)))
    made.apply(LeaseTaken(running("r2 blue/ben 1 on a:1 train", nodes)))
    made.apply(LeaseTaken(running("r3 blue/ben 1 on a:2 train", nodes)))
    lines = ("p1 red/ann 1 train", "p2 blue/ben 1 train")
    made.apply_all(PendingAdded(pending(line), NOW) for line in lines)
    rows = [(p.position, p.project, p.reason) for p in made.share_report(NOW).projects]
    assert rows == [
        (1, "red", "below quota by 2.00 GPU"),
        (2, "blue", "at its fair share"),
        (0, "green", "has no demand"),
    ]


def test_odd_gpu_alternates_by_decayed_usage() -> None:
    """Endless work of two equal projects on three GPUs: the odd GPU alternates, with few evictions."""
    w = world("a 3xT4", "; ".join(f"{p[0]}{i} {p} 1 train" for p in ("red", "blue") for i in range(3)))
    held = {"red": 0, "blue": 0}
    for _ in range(4 * 24):
        w.step()
        w.now += 3600
        for running_ in w.scheduler.demand.running.values():
            held[running_.lease.project] += 1
    assert abs(held["red"] - held["blue"]) < 4 * 24 / 3
    assert 1 <= len(w.evicted) <= 4
