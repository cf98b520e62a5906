"""Elastic gangs: they give GPUs above their minimum to others, one by one, and grow again when GPUs become free."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_world import World, pendings, world

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.scheduler import LeaseReleased, PendingAdded

GANG = WorkloadId("p1")


def members(w: World) -> int:
    return sum(key[0] == GANG for key in w.scheduler.demand.running)


def settled(w: World, least: int) -> None:
    """Run until nothing changes; the gang never has fewer members than its minimum."""
    for _ in range(40):
        went = w.step()
        w.now += 100
        assert members(w) >= least
        if not went:
            return
    raise AssertionError("the pool does not come to rest")


@settings(max_examples=120, deadline=None)
@given(
    gpus=st.integers(2, 8),
    least=st.integers(1, 4),
    spare=st.integers(0, 6),
    demands=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    nodes=st.integers(1, 2),
)
def test_gang_shrinks_for_a_quota_and_grows_again(
    gpus: int, least: int, spare: int, demands: list[int], nodes: int
) -> None:
    total, most = gpus * nodes, least + spare
    least = min(least, total)
    room = total - least  # for the other project
    places = "; ".join(f"n{at} {gpus}xT4" for at in range(nodes))
    w = world(places, f"p1 red 1 gang={least}-{most} train", projects=f"red; blue quota={max(room, 1)}")
    settled(w, least=0)
    assert members(w) == min(most, total)
    for round_, demand in enumerate(demands):
        wanted = min(demand, room)
        names = [f"b{round_}x{at}" for at in range(wanted)]
        for name in names:
            (job,) = pendings(f"{name} blue 1")
            job = replace(job, queued_at=w.now)
            w.waiting[job.key] = job
            w.scheduler.apply(PendingAdded(job, w.now))
        before, evicted = members(w), len(w.evicted)
        settled(w, least)
        running = {key[0] for key in w.scheduler.demand.running}
        assert running == {GANG, *map(WorkloadId, names)}
        assert members(w) == min(most, total - wanted)
        assert len(w.evicted) - evicted == max(0, before - members(w)), "no more members than needed are evicted"
        for name in names:
            key = WorkloadId(name), 0
            w.running.pop(key, None)
            w.scheduler.apply(LeaseReleased(key))
        settled(w, least)
        assert members(w) == min(most, total), "it has grown again"
