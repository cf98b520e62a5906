"""A project gets its quota in whole GPUs, independent of the shapes of others, and evictions end."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduling_cases import happen
from scheduling_world import World, world

from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.values import EvictionKind

STEP_S, ROUNDS, QUIET = 5.0, 60, 30
drawn = settings(
    max_examples=200 if settings.get_current_profile_name() == "search" else 30,
    suppress_health_check=[HealthCheck.too_slow],
)


@dataclass(frozen=True)
class Mix:
    """A pool with work of other projects: lines of ``scheduling_world``."""

    nodes: str
    projects: str
    work: str
    quota: int  # of the project that requests whole GPUs
    training: bool
    gpus: dict[str, int]  # quotas of the others


parts = st.sampled_from(["0.1", "0.13", "0.25", "0.3", "0.34", "0.5", "0.51", "0.7", "0.9"])
shapes = st.one_of(parts, parts, parts, st.just("1"), parts.map("2x{}".format), st.just("2"))


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    sizes = draw(st.lists(st.integers(2, 6), min_size=1, max_size=3))
    capacity = sum(sizes)
    quota = draw(st.integers(1, capacity))
    left, gpus = capacity - quota, dict[str, int]()
    for name in ("red", "green"):
        gpus[name] = draw(st.integers(0, left))
        left -= gpus[name]
    named = [f"{name} quota={number}" for name, number in gpus.items()]
    owners = ["red", "green", "grey"]  # grey: without a quota
    lines = []
    for number in range(draw(st.integers(1, 6))):
        owner, shape = draw(st.sampled_from(owners)), draw(shapes)
        kind = draw(st.sampled_from(["train", "train", "train unsaved", ""]))
        if owner == "grey" and "." not in shape:
            kind = "train"  # protected work on whole GPUs without a quota is unlimited
        spread = draw(st.sampled_from(["", "placement=spread"]))
        gang = draw(st.sampled_from(["", "", "", "gang=2", "gang=2-4"]))
        lines += [f"w{number}x{each} {owner} {shape} {kind} {spread} {gang}" for each in range(draw(st.integers(1, 8)))]
    nodes = "; ".join(f"n{at} {size}xT4" for at, size in enumerate(sizes))
    projects = "; ".join([f"blue quota={quota}", *named])
    return Mix(nodes, projects, "; ".join(lines), quota, draw(st.booleans()), gpus)


def used(w: World, project: str) -> int:
    """Return the number of GPUs on which a project has work."""
    running = [r for r in w.scheduler.demand.running.values() if r.lease.project == project]
    return len({share.gpu_uuid for r in running for share in r.lease.shares})


def rounds(w: World, mix: Mix, count: int) -> int:
    """Let time pass and return the number of evictions; check that no GPUs within a whole-GPU quota are lost."""
    evicted = len(w.evicted)
    for _ in range(count):
        before = {project: used(w, project) for project in mix.gpus}
        owner = {key: r.lease.project for key, r in w.scheduler.demand.running.items()}
        w.step()
        for eviction in w.last.evictions:
            project = owner[eviction.key]
            assert project != "blue", eviction
            moved = eviction.kind is EvictionKind.CONSOLIDATE  # it restarts at once, on other GPUs
            if project in before and "GPUs" in eviction.reason and not moved:
                assert before[project] > mix.gpus[project], eviction
        w.now += STEP_S
    return len(w.evicted) - evicted


@drawn
@given(mixes())
def test_project_gets_its_quota_in_whole_gpus(mix: Mix) -> None:
    w = world(mix.nodes, mix.work, "", mix.projects)
    rounds(w, mix, 30)
    for number in range(mix.quota):
        happen(w, f"add b{number} blue 1 {'train' if mix.training else ''}")
    rounds(w, mix, ROUNDS)
    mine = [r for r in w.scheduler.demand.running.values() if r.lease.project == "blue"]
    assert sum(r.lease.permille for r in mine) == mix.quota * WHOLE_GPU
    assert rounds(w, mix, QUIET) == 0
