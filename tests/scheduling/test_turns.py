"""Time slicing: workloads that had their turn are preempted for others, not too often, and resume."""

from __future__ import annotations

import pytest
from scheduling_world import world

from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.people.access import Project
from gpupool.scheduling.policy import Settings
from gpupool.scheduling.values import EvictionKind
from gpupool.simulate.clusters import parse_cluster
from gpupool.simulate.engine import Simulation
from gpupool.simulate.values import Record, Rules, TraceJob

HOUR = 3600.0
TURN = Settings(turn_s=2 * HOUR)
SAVES = Rules(grace_s=10, checkpoint_s=0, restart_s=0)


def job(at: float, lasts: float, gpus: int = 1, *, project: str = "p", preemptible: bool = True) -> TraceJob:
    return TraceJob(at * HOUR, lasts * HOUR, GpuRequest(gpus), project, "ann", preemptible=preemptible)


def run(
    jobs: list[TraceJob], cluster: str = "1x1xT4", projects: tuple[Project, ...] = (), settings: Settings = TURN
) -> Record:
    return Simulation(jobs, parse_cluster(cluster), projects, SAVES, settings).run()


def test_short_run_preempts_run_that_had_its_turn() -> None:
    record = run([job(0, 30), job(5, 1)])
    assert [fate.wait_s for fate in record.fates] == [0, 10]
    assert record.fates[0].preemptions == 1
    assert record.fates[0].delay_s == pytest.approx(HOUR)


def test_run_before_end_of_turn_is_not_preempted() -> None:
    record = run([job(0, 30), job(1, 1)])
    assert record.fates[1].wait_s == pytest.approx(HOUR + 10)


def test_no_time_slicing_if_disabled_or_for_protected_work() -> None:
    assert run([job(0, 30), job(5, 1)], settings=Settings()).fates[1].wait_s == 25 * HOUR
    protected = run([job(0, 30, preemptible=False), job(5, 1)])
    assert protected.fates[1].wait_s == 25 * HOUR


def test_only_necessary_victims_for_gang_or_several_gpus() -> None:
    jobs = [job(n / 100, 50) for n in range(8)] + [job(6, 1, 4)]
    record = run(jobs, "2x4xT4")
    assert record.fates[8].wait_s == 10
    assert sum(fate.preemptions for fate in record.fates) == 4
    gang = run([*jobs[:8], job(6, 1, 8)], "2x4xT4")
    assert gang.fates[8].wait_s == 10
    assert sum(fate.preemptions for fate in gang.fates) == 8


def test_gang_is_not_preempted_for_small_job() -> None:
    record = run([job(0, 50, 8), job(6, 1)], "2x4xT4")
    assert record.fates[1].wait_s == 44 * HOUR
    assert run([job(0, 50, 8), job(6, 1, 4)], "2x4xT4").fates[1].wait_s == 10


def test_long_run_progresses_despite_stream_of_short_runs() -> None:
    jobs = sorted([job(0, 40), *[job(2.5 + n, 1) for n in range(300)]], key=lambda j: j.submitted_s)
    record = run(jobs)
    assert 8 <= record.fates[0].preemptions <= 12
    assert max(fate.wait_s or 0 for fate in record.fates[1:]) < 25 * HOUR
    assert (record.fates[0].ended_s or 0) == pytest.approx(340 * HOUR, abs=HOUR)  # the GPU was never idle


def test_stream_of_short_runs_rarely_evicts_long_run() -> None:
    jobs = sorted([job(0, 40), *[job(2.5 + n, 0.8) for n in range(300)]], key=lambda j: j.submitted_s)
    record = run(jobs)
    long, last = record.fates[0], record.fates[-1]
    assert long.preemptions <= 12
    assert (long.ended_s or 0) < last.job.submitted_s
    assert max(fate.wait_s or 0 for fate in record.fates[1:]) < 10 * HOUR


def test_other_projects_give_gpus_only_above_their_share() -> None:
    red = [job(n / 100, 50, project="red") for n in range(2)]
    jobs = [*red, job(1, 50, project="blue"), job(1, 50, project="blue"), job(9, 1, project="blue")]
    record = run(jobs, "1x4xT4")
    assert [fate.preemptions for fate in record.fates[:2]] == [0, 0]
    assert record.fates[4].wait_s == 10


def test_gang_takes_turn_from_several_jobs_of_other_project() -> None:
    """Count each victim and each new place once."""
    lines = "; ".join(f"r{at} red 1 on a:{at} train age=9000 evictions=9" for at in range(4))
    w = world("a 4xT4", "p1 blue 1 train gang=2", lines, "red; blue weight=4", turn_s=600.0)
    w.step()
    assert [(e.kind, e.for_workload) for e in w.last.evictions] == [(EvictionKind.TURN, "p1")] * 2
    assert [hold.workload for hold in w.scheduler.holds] == ["p1", "p1"]
