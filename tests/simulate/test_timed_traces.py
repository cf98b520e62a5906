"""Time windows, reservations, departments and checkpoints of single jobs in a simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.nodes.reservation import Reservation
from gpupool.domain.people.access import Department, Project
from gpupool.simulate.clusters import parse_cluster
from gpupool.simulate.engine import WINDOW_CLOSED, Simulation
from gpupool.simulate.metrics import summary
from gpupool.simulate.values import Rules, TraceJob

ONE_GPU, HOUR = parse_cluster("1x1xA100"), 3600.0
NIGHT_FROM, NIGHT_TO = 20 * HOUR, 32 * HOUR  # of the first day of the epoch
NIGHTLY = TraceJob(0, HOUR, GpuRequest(1), "a", "ann", windows=("nights",))


def test_job_starts_when_its_window_opens() -> None:
    noon = replace(NIGHTLY, submitted_s=12 * HOUR)
    record = Simulation([noon], ONE_GPU).run()
    assert record.fates[0].started_s == NIGHT_FROM
    assert record.fates[0].ended_s == NIGHT_FROM + HOUR


def test_job_is_evicted_when_its_window_closes_and_runs_again_in_the_next() -> None:
    early = replace(NIGHTLY, submitted_s=NIGHT_TO - HOUR, duration_s=2 * HOUR)
    record = Simulation([early], ONE_GPU, rules=Rules(grace_s=10)).run()
    assert record.evictions == {WINDOW_CLOSED: 1}
    assert record.fates[0].ended_s == NIGHT_FROM + 24 * HOUR + 2 * HOUR
    assert record.fates[0].wasted_permille_s == (HOUR + 10) * 1000


def test_other_work_runs_while_the_window_is_closed() -> None:
    day = TraceJob(12 * HOUR + 1, HOUR, GpuRequest(1), "a", "bob")
    record = Simulation([replace(NIGHTLY, submitted_s=12 * HOUR), day], ONE_GPU).run()
    assert record.fates[1].wait_s == 0


def test_job_that_can_never_start_ends_the_simulation() -> None:
    protected = replace(NIGHTLY, preemptible=False)
    record = Simulation([protected], ONE_GPU, [Project("a", 0)]).run()
    assert record.fates[0].started_s is None


@pytest.mark.parametrize(("project", "waits_s"), [("a", 0.0), ("b", 90.0)])
def test_reserved_node_is_for_its_project(project: str, waits_s: float) -> None:
    reservation = Reservation("1", "class", ("node00000",), 100.0, 200.0, ("a",))
    job = TraceJob(110, 50, GpuRequest(1), project, "ann")
    record = Simulation([job], ONE_GPU, rules=Rules(reservations=(reservation,))).run()
    assert record.fates[0].wait_s == waits_s


def test_reservation_evicts_training_in_time() -> None:
    reservation = Reservation("1", "upkeep", ("node00000",), 1000.0, 2000.0)
    job, rules = TraceJob(0, 1500, GpuRequest(1)), Rules(grace_s=5, reservations=(reservation,))
    record = Simulation([job], ONE_GPU, rules=rules).run()
    assert record.evictions == {"booking": 1}
    assert record.fates[0].used_permille_s == (998 + 1500) * 1000
    assert record.fates[0].ended_s == 3500


def test_quota_of_a_department_bounds_its_protected_work() -> None:
    jobs = [TraceJob(at, 100, GpuRequest(1), name, name, preemptible=False) for at, name in enumerate("ab")]
    projects = [Project(name, department="ml") for name in "ab"]
    two = parse_cluster("1x2xA100")
    together = Simulation(jobs, two, projects, Rules(departments=(Department("ml", 1000),))).run()
    assert [fate.wait_s for fate in together.fates] == [0, 99]
    assert [fate.wait_s for fate in Simulation(jobs, two, projects).run().fates] == [0, 0]


def test_checkpoints_of_a_job_have_precedence_over_those_of_the_run() -> None:
    owner = TraceJob(1000, 10, GpuRequest(1), "owner", "bob")
    projects = [Project("owner", 1000), Project("borrower", 0)]
    for own, lost in ((None, 1010.0), (0.0, 0.0), (300.0, 110.0)):
        borrower = TraceJob(0, 2000, GpuRequest(1), "borrower", "ann", checkpoint_s=own)
        shown = summary(Simulation([borrower, owner], ONE_GPU, projects, Rules(grace_s=10)).run())
        assert shown["wasted_gpu_hours"] == pytest.approx(lost / 3600, abs=0.001)
        assert shown["wasted_part"] == pytest.approx(lost / (2010 + lost), abs=1e-4)
        assert shown["most_preemptions_of_a_job"] == 1
