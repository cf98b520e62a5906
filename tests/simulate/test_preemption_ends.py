"""Under constant demand preemption comes to an end: no project starts work that is taken from it at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.people.access import Project
from gpupool.scheduling.policy import Settings
from gpupool.simulate.clusters import parse_cluster
from gpupool.simulate.engine import Simulation
from gpupool.simulate.values import Fate, Record, Rules, TraceJob

HOUR = 3600.0
NO_USE_LATELY = Settings(usage_weight=0.0)


def flood(project: str, lasts: float, until: float, gpus: int) -> Iterator[TraceJob]:
    """Yield one-GPU jobs, always more than there are GPUs."""
    for at in range(round(until / lasts * (gpus + 4))):
        yield TraceJob(max(0.0, (at - gpus) * lasts / (gpus + 4)), lasts, GpuRequest(1), project, f"{project}-user")


def large(project: str, count: int, lasts: float, gpus: int = 8, members: int = 1) -> list[TraceJob]:
    """Return jobs that wait from the start."""
    return [TraceJob(1.0, lasts, GpuRequest(gpus), project, f"{project}-user", members=members) for _ in range(count)]


def simulate(jobs: list[TraceJob], projects: list[Project], settings_: Settings, nodes: str = "2x8xA100") -> Record:
    ordered = sorted(jobs, key=lambda job: job.submitted_s)
    return Simulation(ordered, parse_cluster(nodes), projects, Rules(), settings_).run()


def fates_of(record: Record, project: str) -> list[Fate]:
    return [fate for fate in record.fates if fate.job.project == project]


@pytest.mark.parametrize(
    ("hours", "short_s", "long", "weight", "settings_"),
    [
        (1.2, 59.0, large("b", 4, HOUR / 2), 1.0, Settings()),
        (5, 600.0, large("b", 4, 2 * HOUR), 1.2, NO_USE_LATELY),
        (0.8, 59.0, large("b", 1, HOUR / 2, members=2), 1.0, Settings()),
    ],
    ids=["four jobs of a node", "of a share that is not a multiple of a job", "a gang larger than the share"],
)
def test_large_jobs_among_a_flood_of_small_ones_lose_nothing(
    hours: float, short_s: float, long: list[TraceJob], weight: float, settings_: Settings
) -> None:
    jobs = [*flood("a", short_s, hours * HOUR, 16), *long]
    record = simulate(jobs, [Project("a"), Project("b", weight=weight)], settings_)
    mine = fates_of(record, "b")
    assert sum(fate.preemptions for fate in mine) == 0
    assert sum(fate.wasted_permille_s for fate in mine) == 0
    assert all(fate.finished == fate.replicas for fate in mine)
    in_time = [fate for fate in mine if fate.ended_s is not None and fate.ended_s < hours * HOUR]
    assert len(in_time) >= (len(long) + 1) // 2


@st.composite
def demands(draw: st.DrawFn) -> tuple[list[Project], list[TraceJob]]:
    """Draw demand: one project submits many small jobs for an hour; others have larger jobs from the start."""
    projects = [Project("flood", weight=draw(st.sampled_from([0.5, 1.0, 1.7])))]
    jobs = list(flood("flood", draw(st.sampled_from([300.0, 700.0])), HOUR, 16))
    for name in ("x", "y")[: draw(st.integers(1, 2))]:
        projects.append(Project(name, weight=draw(st.sampled_from([0.3, 1.0, 1.2, 2.0]))))
        lasts = draw(st.sampled_from([1200.0, 2400.0]))
        for _ in range(draw(st.integers(1, 4))):
            jobs += large(name, 1, lasts, *draw(st.sampled_from([(3, 1), (5, 1), (8, 1), (4, 2), (8, 2)])))
    return projects, jobs


@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(demands(), st.sampled_from([Settings(), NO_USE_LATELY]))
def test_under_constant_demand_preemption_ends_and_everybody_finishes(
    demand: tuple[list[Project], list[TraceJob]], settings_: Settings
) -> None:
    projects, jobs = demand
    record = simulate(jobs, projects, settings_)
    assert all(fate.finished == fate.replicas for fate in record.fates)
    used = sum(fate.used_permille_s for fate in record.fates)
    assert sum(fate.wasted_permille_s for fate in record.fates) <= 0.05 * used
    assert all(fate.preemptions <= 2 * fate.replicas for fate in record.fates)
