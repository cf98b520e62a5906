"""Cards that could get a MIG instance for a request: which ones count, their order, and what the wait rules say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduling_world import World, world

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import Gpu, GpuRequest, Node
from gpupool.domain.nodes.mig import MigCard, MigProfile
from gpupool.scheduling.explain.wait_reason import Explanation
from gpupool.scheduling.placement.mig_sites import mig_sites
from gpupool.scheduling.scheduler import NodeChanged
from gpupool.scheduling.state.cluster import Shapes

A100 = "NVIDIA A100-SXM4-80GB"
SIZES = {"1g.10gb": 1, "1g.10gb+me": 1, "1g.20gb": 1, "3g.40gb": 3, "4g.40gb": 4, "7g.80gb": 7}


def card(name: str, **free: int) -> MigCard:
    """Return a card in MIG mode with room for some instances (``m3g_40gb=1``)."""
    room = {key[1:].replace("_", "."): count for key, count in free.items()}
    memory = {name: int(name.split(".")[1].split("gb")[0]) * 1024 for name in SIZES}
    profiles = (MigProfile(n, slices, memory[n], 7 // slices, room.get(n, 0)) for n, slices in SIZES.items())
    return MigCard(f"{name}-card", 0, A100, tuple(profiles))


def change(w: World, name: str, *cards: MigCard, gpus: tuple[Gpu, ...] = (), allowed: bool = True) -> None:
    node = node_of(w, name)
    report = replace(node.report, mig_cards=cards, gpus=(*node.report.gpus, *gpus))
    labels = {"mig": "on-demand"} if allowed else {}
    w.scheduler.apply(NodeChanged(replace(node, report=report, labels=labels)))


def node_of(w: World, name: str) -> Node:
    return next(node for node in w.scheduler.placer.cluster.nodes if node is not None and node.name == name)


def sites(w: World, model: str, **request: object) -> list[tuple[str, str, bool]]:
    """Return node, profile and readiness of the sites for a request for a model."""
    shape = Shapes().get(GpuRequest(1, models=(model,), **request), 0, 0)  # type: ignore[arg-type]  # words of the test
    return [(s.node.name, s.profile.name, s.ready) for s in mig_sites(w.scheduler.placer.cluster, shape)]


def instance(uuid: str, profile: str, *, own: bool = True) -> Gpu:
    mib = int(profile.split(".")[1].removesuffix("gb")) * 1024
    return Gpu(uuid, 101, f"{A100} MIG {profile}", mib, mig_profile=profile, parent_uuid="a-card", on_demand=own)


def why(w: World, name: str) -> Explanation:
    found = w.scheduler.explain((WorkloadId(name), 0), w.now, foretell=False)
    assert found is not None
    return found


def test_smallest_profile_that_suffices_is_chosen_and_the_fullest_card_first() -> None:
    w = world("a 1xT4; b 1xT4; c 1xT4")
    change(w, "a", card("a", m1g_10gb=7, m3g_40gb=2, m4g_40gb=1, m7g_80gb=1))
    change(w, "b", card("b", m1g_10gb=3, m3g_40gb=1))
    change(w, "c", card("c", m3g_40gb=2), allowed=False)
    assert sites(w, "3g.40gb") == [("b", "3g.40gb", True), ("a", "3g.40gb", True)]
    assert sites(w, "mig") == [("b", "1g.10gb", True), ("a", "1g.10gb", True)]
    assert sites(w, "mig", memory_mib=15_000) == [], "1g.20gb would suffice, but there is no room"
    assert sites(w, "a100 7g.80gb") == [("a", "7g.80gb", True)]
    assert sites(w, "a100") == []
    assert sites(w, "t4 mig") == []


def test_nodes_that_the_work_cannot_use_do_not_count() -> None:
    w = world("a 1xT4 rack=x cpus=4")
    change(w, "a", card("a", m3g_40gb=1))
    c = w.scheduler.placer.cluster
    request = GpuRequest(1, models=("3g.40gb",))
    assert mig_sites(c, Shapes().get(request, 4, 0))
    assert not mig_sites(c, Shapes().get(request, 5, 0))
    assert not mig_sites(c, Shapes().get(replace(request, labels=(("rack", "y"),)), 1, 0))
    assert not mig_sites(c, Shapes().get(request, 1, 0, "", ("other pool",)))
    assert not mig_sites(c, Shapes().get(replace(request, count=2), 1, 0))
    w.scheduler.apply(NodeChanged(replace(node_of(w, "a"), cordoned_gpus={"a-card": "broken"})))
    assert not mig_sites(c, Shapes().get(request, 1, 0))


def test_unused_instances_of_the_pool_may_go_and_others_not() -> None:
    w = world("a 1xT4")
    own = (instance("MIG-1", "1g.10gb"), instance("MIG-2", "3g.40gb"))
    change(w, "a", card("a", m1g_10gb=3), gpus=own)
    shape = Shapes().get(GpuRequest(1, models=("4g.40gb",)), 0, 0)
    [site] = mig_sites(w.scheduler.placer.cluster, shape)
    assert not site.ready
    assert [gpu.uuid for gpu in site.removable] == ["MIG-1"], "no more than needed"
    assert sites(w, "7g.80gb") == [("a", "7g.80gb", False)]
    theirs = world("a 1xT4")
    change(theirs, "a", card("a"), gpus=(instance("MIG-1", "4g.40gb", own=False), instance("MIG-2", "3g.40gb")))
    assert sites(theirs, "7g.80gb") == []
    assert sites(theirs, "4g.40gb") == []


def test_request_is_accepted_if_a_card_has_the_profile() -> None:
    w = world("a 1xT4")
    change(w, "a", card("a"), allowed=False)
    w.scheduler.check_possible(GpuRequest(1, models=("3g.40gb",)))
    with pytest.raises(GpupoolError) as refused:
        w.scheduler.check_possible(GpuRequest(1, models=("2g.20gb",)))
    assert refused.value.code is ErrorCode.UNKNOWN_MODEL
    assert "The pool creates no such MIG instance" in refused.value.hint


def test_reason_names_the_node_or_the_lack_of_room_or_permission() -> None:
    w = world("a 1xT4", "p1 red 1 model=3g.40gb")
    change(w, "a", card("a", m3g_40gb=1))
    found = why(w, "p1")
    assert str(found.code) == "MIG_INSTANCE"
    assert found.sentence.endswith("a creates a MIG instance 3g.40gb on GPU 0")
    assert found.numbers == {"node": "a", "gpu": 0, "profile": "3g.40gb"}
    change(w, "a", card("a"))
    assert "no card has room for another MIG instance 3g.40gb" in why(w, "p1").sentence
    assert str(why(w, "p1").code) == "MIG_INSTANCE"
    change(w, "a", card("a", m3g_40gb=1), allowed=False)
    assert "the pool may not create instances there" in why(w, "p1").sentence


def test_other_reasons_come_first() -> None:
    w = world("a 1xT4", "p1 red 1 model=3g.40gb; p2 blue 1 model=3g.40gb", projects="red quota=0 strict; blue")
    change(w, "a", card("a", m3g_40gb=1))
    assert str(why(w, "p1").code) == "PROJECT_QUOTA"
    assert str(why(w, "p2").code) == "MIG_INSTANCE"
    change(w, "a", card("a", m3g_40gb=1), gpus=(instance("MIG-1", "3g.40gb"),))
    assert str(why(w, "p2").code) == "STARTING_SOON"
