"""Turns: who has run for its time makes way for who has not, not too often, and comes back."""

from __future__ import annotations

import pytest
from scheduling_world import world

from gpupool.domain.access import Project
from gpupool.domain.gpu import GpuRequest
from gpupool.scheduling.values import EvictionKind, Settings
from gpupool.simulate.clusters import parse_cluster
from gpupool.simulate.engine import Simulation
from gpupool.simulate.values import Job, Record, Rules

HOUR = 3600.0
TURN = Settings(turn_s=2 * HOUR)
SAVES = Rules(grace_s=10, checkpoint_s=0, restart_s=0)


def job(at: float, lasts: float, gpus: int = 1, *, project: str = "p", preemptible: bool = True) -> Job:
    return Job(at * HOUR, lasts * HOUR, GpuRequest(gpus), project, "ann", preemptible=preemptible)


def run(
    jobs: list[Job], cluster: str = "1x1xT4", projects: tuple[Project, ...] = (), settings: Settings = TURN
) -> Record:
    return Simulation(jobs, parse_cluster(cluster), projects, SAVES, settings).run()


def test_a_short_run_does_not_wait_behind_one_that_had_its_turn() -> None:
    record = run([job(0, 30), job(5, 1)])
    assert [fate.wait_s for fate in record.fates] == [0, 10]
    assert record.fates[0].preemptions == 1
    assert record.fates[0].delay_s == pytest.approx(HOUR)


def test_who_has_not_had_its_turn_stays() -> None:
    record = run([job(0, 30), job(1, 1)])
    assert record.fates[1].wait_s == pytest.approx(HOUR + 10)


def test_nobody_makes_way_where_turns_are_off_or_for_protected_work() -> None:
    assert run([job(0, 30), job(5, 1)], settings=Settings()).fates[1].wait_s == 25 * HOUR
    protected = run([job(0, 30, preemptible=False), job(5, 1)])
    assert protected.fates[1].wait_s == 25 * HOUR


def test_a_gang_and_several_gpus_are_made_way_for_by_no_more_than_needed() -> None:
    jobs = [job(n / 100, 50) for n in range(8)] + [job(6, 1, 4)]
    record = run(jobs, "2x4xT4")
    assert record.fates[8].wait_s == 10
    assert sum(fate.preemptions for fate in record.fates) == 4
    gang = run([*jobs[:8], job(6, 1, 8)], "2x4xT4")
    assert gang.fates[8].wait_s == 10
    assert sum(fate.preemptions for fate in gang.fates) == 8


def test_a_gang_is_not_sent_away_for_little() -> None:
    record = run([job(0, 50, 8), job(6, 1)], "2x4xT4")
    assert record.fates[1].wait_s == 44 * HOUR
    assert run([job(0, 50, 8), job(6, 1, 4)], "2x4xT4").fates[1].wait_s == 10


def test_what_is_long_goes_on_again_and_again_where_the_short_alone_would_fill_the_pool() -> None:
    jobs = sorted([job(0, 40), *[job(2.5 + n, 1) for n in range(300)]], key=lambda j: j.submitted_s)
    record = run(jobs)
    assert 8 <= record.fates[0].preemptions <= 12
    assert max(fate.wait_s or 0 for fate in record.fates[1:]) < 25 * HOUR
    assert (record.fates[0].ended_s or 0) == pytest.approx(340 * HOUR, abs=HOUR)  # the GPU was never idle


def test_a_stream_of_short_runs_neither_starves_a_long_one_nor_evicts_it_often() -> None:
    jobs = sorted([job(0, 40), *[job(2.5 + n, 0.8) for n in range(300)]], key=lambda j: j.submitted_s)
    record = run(jobs)
    long, last = record.fates[0], record.fates[-1]
    assert long.preemptions <= 12
    assert (long.ended_s or 0) < last.job.submitted_s
    assert max(fate.wait_s or 0 for fate in record.fates[1:]) < 10 * HOUR


def test_other_projects_make_way_only_as_far_as_they_hold_more_than_their_share() -> None:
    red = [job(n / 100, 50, project="red") for n in range(2)]
    jobs = [*red, job(1, 50, project="blue"), job(1, 50, project="blue"), job(9, 1, project="blue")]
    record = run(jobs, "1x4xT4")
    assert [fate.preemptions for fate in record.fates[:2]] == [0, 0]
    assert record.fates[4].wait_s == 10


def test_a_gang_takes_its_turn_from_several_of_another_project() -> None:
    """Whoever is taken, and whoever has a place, is counted once."""
    lines = "; ".join(f"r{at} red 1 on a:{at} train age=9000 evictions=9" for at in range(4))
    w = world("a 4xT4", "p1 blue 1 train gang=2", lines, "red; blue weight=4", turn_s=600.0)
    w.step()
    assert [(e.kind, e.for_workload) for e in w.last.evictions] == [(EvictionKind.TURN, "p1")] * 2
    assert [hold.workload for hold in w.scheduler.holds] == ["p1", "p1"]
