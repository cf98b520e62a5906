from __future__ import annotations

import pytest

from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.people.access import Project
from gpupool.scheduling.scheduler import NodeChanged, Scheduler
from gpupool.simulate.clusters import parse_cluster, parse_nodes
from gpupool.simulate.engine import JobKind, Simulation, stranded_permille, usual_kinds
from gpupool.simulate.metrics import summary
from gpupool.simulate.values import Record, Rules, TraceJob

ONE_GPU = parse_cluster("1x1xA100")


def job(at: float, lasts: float, gpus: int = 1, *, project: str = "a", preemptible: bool = True) -> TraceJob:
    return TraceJob(at, lasts, GpuRequest(gpus), project, "ann", preemptible=preemptible)


def waits(record: Record) -> list[float | None]:
    return [fate.wait_s for fate in record.fates]


def test_one_gpu_serves_one_after_the_other() -> None:
    record = Simulation([job(0, 100), job(10, 50), job(20, 30)], ONE_GPU).run()
    assert waits(record) == [0, 90, 130]
    assert record.ended_s == 180
    shown = summary(record)
    assert shown["wait_s"] == {"mean": 73.333, "p50": 90, "p90": 122, "p99": 129.2, "max": 130}
    assert (shown["finished"], shown["starts"], shown["gpu_hours"]) == (3, 3, 0.05)
    assert shown["allocated"] == 1.0


def test_allocation_is_averaged_while_work_comes() -> None:
    record = Simulation([job(0, 25), job(100, 1000)], ONE_GPU, rules=Rules(samples=4)).run()
    assert summary(record)["allocated"] == 0.25
    assert [(s.at_s, s.allocated_permille) for s in record.samples] == [(12.5, 1000), (37.5, 0), (62.5, 0), (87.5, 0)]


def test_halves_of_a_gpu_run_side_by_side() -> None:
    half = GpuRequest(1, 500)
    record = Simulation([TraceJob(0, 60, half), TraceJob(0, 60, half), TraceJob(0, 60, half)], ONE_GPU).run()
    assert sorted(fate.wait_s or 0 for fate in record.fates) == [0, 0, 60]


def test_job_larger_than_node_is_a_gang_on_several_nodes() -> None:
    record = Simulation([job(0, 100, 2), job(1, 50, 4)], parse_cluster("2x2xA100")).run()
    assert record.fates[1].replicas == 2
    assert waits(record) == [0, 99]
    assert record.fates[1].finished == 2


def test_indivisible_gpu_counts_start_one_by_one() -> None:
    record = Simulation([job(0, 100, 2), job(1, 50, 3)], parse_cluster("2x2xA100")).run()
    assert [fate.replicas for fate in record.fates] == [1, 2]
    assert waits(record) == [0, 50]  # the rest follows, on the node that is free sooner


def test_job_that_fits_no_node_is_reported_and_not_queued() -> None:
    jobs = [TraceJob(0, 10, GpuRequest(1, models=("H100",))), job(1, 10)]
    shown = summary(Simulation(jobs, ONE_GPU).run())
    assert (shown["impossible"], shown["left_waiting"], shown["finished"]) == (1, 0, 1)
    assert shown["reasons"] == ["No node has a GPU of model H100."]


def test_protected_work_beyond_its_quota_is_left_waiting_and_the_simulation_ends() -> None:
    jobs = [job(0, 10, preemptible=False)]
    shown = summary(Simulation(jobs, ONE_GPU, [Project("a", 0)]).run())
    assert (shown["left_waiting"], shown["finished"], shown["wait_s"]["mean"]) == (1, 0, 0)


def test_owner_reclaims_gpu_after_grace_and_victim_restarts() -> None:
    jobs = [job(0, 1000, project="borrower"), job(100, 50, project="owner")]
    projects = [Project("borrower", 0), Project("owner", 1000)]
    record = Simulation(jobs, ONE_GPU, projects, Rules(grace_s=10)).run()
    victim, owner = record.fates
    assert owner.wait_s == 10
    assert (victim.preemptions, victim.wasted_permille_s) == (1, 110 * 1000)
    assert (victim.wait_s, victim.finished) == (0, 1)
    assert record.ended_s == 160 + 1000
    assert summary(record)["projects"]["borrower"]["preemptions"] == 1


def _evicted(rules: Rules) -> Record:
    jobs = [job(0, 1000, project="borrower"), job(100, 50, project="owner")]
    return Simulation(jobs, ONE_GPU, [Project("borrower", 0), Project("owner", 1000)], rules).run()


def test_work_with_checkpoints_continues_after_eviction() -> None:
    record = _evicted(Rules(grace_s=10, checkpoint_s=0, restart_s=5))
    victim = record.fates[0]
    assert victim.wasted_permille_s == 5 * 1000
    assert (victim.ended_s, victim.delay_s) == (160 + 5 + 890, 55)


def test_work_with_checkpoint_interval_loses_work_since_last_checkpoint() -> None:
    record = _evicted(Rules(grace_s=10, checkpoint_s=60, restart_s=0))
    victim = record.fates[0]
    assert victim.wasted_permille_s == 50 * 1000
    assert victim.ended_s == 160 + 940


def test_eviction_happens_when_min_runtime_ends() -> None:
    jobs = [job(0, 1000, project="borrower"), job(5, 50, project="owner")]
    projects = [Project("borrower", 0), Project("owner", 1000)]
    record = Simulation(jobs, ONE_GPU, projects, Rules(grace_s=10)).run()
    assert record.fates[1].wait_s == 65


def test_job_that_ends_within_grace_has_finished() -> None:
    jobs = [job(0, 105, project="borrower"), job(100, 50, project="owner")]
    projects = [Project("borrower", 0), Project("owner", 1000)]
    record = Simulation(jobs, ONE_GPU, projects, Rules(grace_s=10)).run()
    assert (record.fates[0].preemptions, record.fates[0].finished, record.fates[1].wait_s) == (0, 1, 5)


def test_same_input_gives_same_record() -> None:
    jobs = [job(n * 3, 20 + n * 7 % 50, 1 + n % 3, project=f"p{n % 4}") for n in range(200)]
    runs = [summary(Simulation(jobs, parse_cluster("2x4xA100")).run()) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0]["finished"] == 200


def test_nothing_is_ever_allocated_beyond_the_cluster() -> None:
    jobs = [TraceJob(n, 30 + n % 17, GpuRequest(1, 100 + n * 37 % 900)) for n in range(150)]
    record = Simulation(jobs, parse_cluster("2x2xA100")).run()
    assert max(sample.allocated_permille for sample in record.samples) <= record.capacity_permille
    assert sum(fate.finished for fate in record.fates) == 150


def test_progress_is_reported() -> None:
    told: list[tuple[int, int]] = []
    Simulation([job(0, 5), job(10, 5)], ONE_GPU).run(lambda done, jobs: told.append((done, jobs)))
    assert told[0] == (1, 2)
    assert told[-1] == (2, 2)


def test_stranded_capacity_depends_on_typical_work() -> None:
    scheduler = Scheduler()
    lines = ["sn,cpu_milli,memory_mib,gpu,model", "n1,4000,1000,2,T4", "n2,64000,1000,1,T4"]
    scheduler.apply_all(NodeChanged(node) for node in parse_nodes(lines))
    cluster = scheduler.cluster
    assert stranded_permille(cluster, [JobKind(GpuRequest(1), 1000, 1.0)]) == 0
    assert stranded_permille(cluster, [JobKind(GpuRequest(1), 8000, 1.0)]) == 2000
    assert stranded_permille(cluster, [JobKind(GpuRequest(2), 1000, 1.0)]) == 1000
    assert stranded_permille(cluster, [JobKind(GpuRequest(1, models=("A100",)), 0, 1.0)]) == 3000
    mixed = [JobKind(GpuRequest(2), 0, 0.5), JobKind(GpuRequest(1), 0, 0.5)]
    assert stranded_permille(cluster, mixed) == 500


def test_usual_kinds_cover_most_jobs() -> None:
    kinds = usual_kinds([job(0, 1)] * 96 + [job(0, 1, 2)] * 4)
    assert [(kind.request.count, kind.part) for kind in kinds] == [(1, pytest.approx(1.0))]
