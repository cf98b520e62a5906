"""One GPU hosts parts in one sharing mode only; policies of GPUs and nodes, and what a node can do, are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_world import NOW, World, node, world

from gpupool.domain.errors import GpupoolError
from gpupool.domain.gpu import Gpu, GpuRequest, Node, Sharing
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.sharing import slice_mode
from gpupool.domain.workload import Lease
from gpupool.scheduling.explain import WaitCode
from gpupool.scheduling.scheduler import LeaseTaken, NodeChanged, PendingAdded, Scheduler
from gpupool.scheduling.values import PendingReplica, RunningReplica

SHARE, MPS, ADVISORY, WHOLE = Sharing.SHARE, Sharing.MPS, Sharing.ADVISORY, Sharing.WHOLE
ALL = ("share", "mps", "advisory")


def shared(line: str, offered: tuple[str, ...] = ALL, **policies: Sharing) -> Node:
    """A node that can do these modes; ``a_1=MPS`` is the policy of its GPU ``a-1``, ``node=MPS`` of the others."""
    made = node(line)
    chosen = {"" if name == "node" else name.replace("_", "-"): mode for name, mode in policies.items()}
    return replace(made, report=replace(made.report, sharing=offered), sharing=chosen)


def ask(w: World, name: str, sharing: Sharing | None = None, permille: int = 250, **more: Any) -> None:
    wanted = GpuRequest(more.pop("count", 1), permille, sharing=sharing)
    waits = PendingReplica(WorkloadId(name), 0, "red", more.pop("user", "ann"), wanted, NOW, **more)
    w.scheduler.apply(PendingAdded(waits, NOW))


def begin(*nodes: Node) -> World:
    w = world("")
    w.scheduler.apply_all(NodeChanged(n) for n in nodes)
    return w


def decided(w: World) -> dict[str, tuple[str, list[int]]]:
    """Who was granted what: its mode and its GPUs."""
    grants = w.scheduler.decide(w.now).grants
    return {str(g.workload): (g.sharing, [s.gpu_index for s in g.shares]) for g in grants}


def test_parts_in_different_modes_do_not_meet_on_a_gpu() -> None:
    w = begin(shared("a 2xT4"))
    for name, mode in (("p1", None), ("p2", MPS), ("p3", SHARE), ("p4", MPS), ("p5", ADVISORY)):
        ask(w, name, mode)
    given_ = decided(w)
    assert {name: mode for name, (mode, _) in given_.items()} == {
        "p1": "share",
        "p2": "mps",
        "p3": "share",
        "p4": "mps",
    }
    assert given_["p1"][1] == given_["p3"][1]
    assert given_["p2"][1] == given_["p4"][1] != given_["p1"][1]
    found = w.scheduler.explain((WorkloadId("p5"), 0), w.now)
    assert found is not None
    assert found.code is WaitCode.OTHER_SHARING_MODE


def test_when_the_last_part_has_gone_another_mode_may_come() -> None:
    w = begin(shared("a 1xT4"))
    ask(w, "p1", MPS)
    assert decided(w) == {"p1": ("mps", [0])}
    ask(w, "p2", SHARE)
    assert decided(w) == {}
    w.leave((WorkloadId("p1"), 0))
    assert decided(w) == {"p2": ("share", [0])}
    assert (w.scheduler.cluster.guests != 0).any()
    w.leave((WorkloadId("p2"), 0))
    assert not w.scheduler.cluster.guests.any()


def test_what_ran_before_a_restart_counts_in_its_mode() -> None:
    w = begin(shared("a 1xT4"))
    (gpu,) = shared("a 1xT4").report.gpus
    share = GpuRequest(permille=250)
    held = Lease(Epoch(1), WorkloadId("r1"), 0, 1, "red", "ann", "a", (), 0, 0, NOW, sharing="mps")
    part = replace(held, shares=(_share(gpu, share),))
    w.scheduler.apply(LeaseTaken(RunningReplica(part, NOW)))
    ask(w, "p1")
    ask(w, "p2", MPS)
    assert decided(w) == {"p2": ("mps", [0])}


def _share(gpu: Gpu, wanted: GpuRequest) -> object:
    from gpupool.domain.gpu import GpuShare

    return GpuShare(gpu.uuid, gpu.index, wanted.permille, wanted.memory_on(gpu.memory_mib))


def test_policies_send_parts_to_the_right_gpus_and_leave_whole_ones_alone() -> None:
    w = begin(shared("a 3xT4", a_0=WHOLE, a_1=MPS))
    ask(w, "p1", MPS)
    ask(w, "p2", SHARE)
    ask(w, "p3", permille=1000)
    ask(w, "p4", permille=1000)
    given_ = decided(w)
    assert given_["p1"] == ("mps", [1])
    assert given_["p2"] == ("share", [2])
    assert given_["p3"] == ("whole", [0])
    assert "p4" not in given_


def test_several_parts_of_one_replica_have_one_mode() -> None:
    w = begin(shared("a 3xT4", a_0=MPS))
    ask(w, "p1", count=2)
    assert decided(w) == {"p1": ("share", [1, 2])}
    ask(w, "p2", count=3)
    assert decided(w) == {}
    ask(w, "p3", MPS, permille=500)
    assert decided(w) == {"p3": ("mps", [0])}


def test_a_node_of_another_default_is_no_reason_to_wait() -> None:
    w = begin(shared("a 1xT4", ("advisory",)), shared("b 1xT4", ("share", "mps"), node=MPS))
    ask(w, "p1", SHARE)
    ask(w, "p2", MPS)
    ask(w, "p3", ADVISORY)
    assert {name: mode for name, (mode, _) in decided(w).items()} == {"p2": "mps", "p3": "advisory"}


@pytest.mark.parametrize(
    ("made", "wanted", "says"),
    [
        (shared("a 1xT4", ("advisory",)), GpuRequest(permille=100, sharing=SHARE), "can share by advisory"),
        (shared("a 1xT4", node=SHARE), GpuRequest(permille=100, sharing=MPS), "has chosen share"),
        (shared("a 1xT4", node=WHOLE), GpuRequest(permille=100), "gives away parts"),
        (shared("a 1xT4", ("advisory",)), GpuRequest(sharing=SHARE), "in the mode share"),
    ],
)
def test_a_mode_that_no_node_has_is_refused_at_once(made: Node, wanted: GpuRequest, says: str) -> None:
    w = begin(made)
    with pytest.raises(GpupoolError) as refused:
        w.scheduler.check_possible(wanted)
    assert says in refused.value.hint


def test_whole_gpus_may_ask_for_the_library_and_mind_no_policy() -> None:
    w = begin(shared("a 1xT4", node=MPS))
    ask(w, "p1", SHARE, permille=1000)
    assert decided(w) == {"p1": ("share", [0])}


def test_those_who_leave_take_their_mode_along() -> None:
    """Preemption: the only place is a GPU in another mode, and whoever makes it so may be evicted."""
    w = begin(shared("a 1xT4"))
    ask(w, "low", MPS, preemptible=True)
    assert decided(w) == {"low": ("mps", [0])}
    w.now += 1000
    ask(w, "high", SHARE, priority=10)
    w.step()
    assert w.evicted == ["low"]
    assert decided(w)["high"] == ("share", [0])


POLICIES = st.none() | st.sampled_from([WHOLE, SHARE, MPS, ADVISORY])
OFFERS = st.sampled_from([(), ("share",), ("advisory",), ("share", "mps"), ("mps", "advisory")])


@given(st.lists(st.tuples(OFFERS, POLICIES), min_size=1, max_size=4), st.none() | st.sampled_from([SHARE, MPS]))
def test_the_arrays_say_what_the_rule_says(
    gpus: list[tuple[tuple[str, ...], Sharing | None]], asked: Sharing | None
) -> None:
    """A part goes somewhere if and only if the rule for one GPU allows it there, and gets the mode of the rule."""
    scheduler = Scheduler()
    modes: dict[str, str | None] = {}
    for number, (offered, policy) in enumerate(gpus):
        policies = {"node": policy} if policy else {}
        scheduler.apply(NodeChanged(shared(f"n{number} 1xT4", offered, **policies)))
        modes[f"n{number}"] = slice_mode(asked or "", policy or "", offered)
    for number in range(len(gpus) + 1):
        wanted = GpuRequest(permille=1000 - 1, sharing=asked)
        scheduler.apply(PendingAdded(PendingReplica(WorkloadId(f"p{number}"), 0, "red", "ann", wanted, NOW), NOW))
    grants = {g.node: g.sharing for g in scheduler.decide(NOW).grants}
    assert grants == {name: mode for name, mode in modes.items() if mode is not None}


@pytest.mark.parametrize(("offered", "mode"), [(("share", "mig"), "mig"), (("share",), "whole"), ((), "mig")])
def test_an_instance_is_given_out_as_one_where_the_node_can(offered: tuple[str, ...], mode: str) -> None:
    cut = shared("a 1xA100", offered)
    instance = replace(cut.report.gpus[0], model="A100 MIG 3g.40gb", mig_profile="3g.40gb", parent_uuid="a")
    w = begin(replace(cut, report=replace(cut.report, gpus=(instance,))))
    wanted = GpuRequest(models=("3g.40gb",))
    w.scheduler.apply(PendingAdded(PendingReplica(WorkloadId("p1"), 0, "red", "ann", wanted, NOW), NOW))
    assert decided(w) == {"p1": (mode, [0])}


def test_a_gpu_serves_one_user_at_a_time_by_mps() -> None:
    w = begin(shared("a 1xT4"))
    for name, user in (("p1", "ann"), ("p2", "ben"), ("p3", "ann")):
        ask(w, name, MPS, user=user)
    assert set(decided(w)) == {"p1", "p3"}
    found = w.scheduler.explain((WorkloadId("p2"), 0), w.now)
    assert found is not None
    assert found.code is WaitCode.OTHER_SHARING_MODE
    w.leave((WorkloadId("p1"), 0))
    assert decided(w) == {}
    w.leave((WorkloadId("p3"), 0))
    assert decided(w) == {"p2": ("mps", [0])}


def test_whose_a_part_is_matters_as_soon_as_a_policy_says_mps() -> None:
    """Also to those who wait already and insist on no mode, and not to those who share otherwise."""
    w = begin(shared("a 1xT4"))
    ask(w, "r1", permille=1000)
    assert "r1" in decided(w)
    for name, user in (("p1", "ann"), ("p2", "ben"), ("p3", "ann")):
        ask(w, name, user=user)
    assert decided(w) == {}
    w.scheduler.apply(NodeChanged(shared("a 1xT4", node=MPS)))
    w.leave((WorkloadId("r1"), 0))
    assert set(decided(w)) == {"p1", "p3"}
    w.scheduler.apply(NodeChanged(shared("a 1xT4")))
    for name in ("p1", "p3"):
        w.leave((WorkloadId(name), 0))
    ask(w, "p4", user="cat")
    assert {name: mode for name, (mode, _) in decided(w).items()} == {"p2": "share", "p4": "share"}


def test_parts_of_several_gpus_are_not_had_by_mps() -> None:
    w = begin(shared("a 2xT4", node=MPS))
    for wanted in (GpuRequest(2, 250), GpuRequest(2, 250, sharing=MPS)):
        with pytest.raises(GpupoolError):
            w.scheduler.check_possible(wanted)
    w.scheduler.check_possible(GpuRequest(1, 250, sharing=MPS))


def test_whoever_is_evicted_makes_room_for_another_user_by_mps() -> None:
    w = begin(shared("a 1xT4"))
    ask(w, "low", MPS, preemptible=True, user="ben")
    assert "low" in decided(w)
    w.now += 1000
    ask(w, "high", MPS, priority=10)
    w.step()
    assert w.evicted == ["low"]
    assert decided(w)["high"] == ("mps", [0])
