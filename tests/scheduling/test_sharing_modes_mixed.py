"""A GPU hosts slices of one sharing mode only; policies of GPUs and nodes, and abilities of nodes, are respected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_world import NOW, World, node, world

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.nodes.gpu import Gpu, GpuRequest, Node
from gpupool.domain.nodes.sharing import Sharing
from gpupool.domain.work.sharing_policy import slice_mode
from gpupool.domain.work.workload import GpuLease
from gpupool.scheduling.explain.wait_reason import WaitCode
from gpupool.scheduling.scheduler import LeaseTaken, NodeChanged, PendingAdded, Scheduler
from gpupool.scheduling.values import PendingReplica, RunningReplica

SHARE, MPS, ADVISORY, WHOLE = Sharing.SHARE, Sharing.MPS, Sharing.ADVISORY, Sharing.WHOLE
ALL = ("share", "mps", "advisory")


def shared(line: str, offered: tuple[str, ...] = ALL, **policies: Sharing) -> Node:
    """Return a node that supports these modes; ``a_1=MPS`` is the policy of GPU ``a-1``, ``node=MPS`` of all others."""
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
    """Return mode and GPUs of each grant."""
    grants = w.scheduler.decide(w.now).grants
    return {str(g.workload): (g.sharing, [s.gpu_index for s in g.shares]) for g in grants}


def test_slices_of_different_modes_do_not_share_a_gpu() -> None:
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


def test_gpu_without_slices_accepts_another_mode() -> None:
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


def test_leases_from_before_restart_keep_their_mode() -> None:
    w = begin(shared("a 1xT4"))
    (gpu,) = shared("a 1xT4").report.gpus
    share = GpuRequest(permille=250)
    held = GpuLease(Epoch(1), WorkloadId("r1"), 0, 1, "red", "ann", "a", (), 0, 0, NOW, sharing="mps")
    part = replace(held, shares=(_share(gpu, share),))
    w.scheduler.apply(LeaseTaken(RunningReplica(part, NOW)))
    ask(w, "p1")
    ask(w, "p2", MPS)
    assert decided(w) == {"p2": ("mps", [0])}


def _share(gpu: Gpu, wanted: GpuRequest) -> object:
    from gpupool.domain.nodes.gpu import GpuShare

    return GpuShare(gpu.uuid, gpu.index, wanted.permille, wanted.memory_on(gpu.memory_mib))


def test_policies_apply_to_slices_and_not_to_whole_gpus() -> None:
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


def test_slices_of_one_replica_have_one_mode() -> None:
    w = begin(shared("a 3xT4", a_0=MPS))
    ask(w, "p1", count=2)
    assert decided(w) == {"p1": ("share", [1, 2])}
    ask(w, "p2", count=3)
    assert decided(w) == {}
    ask(w, "p3", MPS, permille=500)
    assert decided(w) == {"p3": ("mps", [0])}


def test_node_with_other_default_mode_is_usable() -> None:
    w = begin(shared("a 1xT4", ("advisory",)), shared("b 1xT4", ("share", "mps"), node=MPS))
    ask(w, "p1", SHARE)
    ask(w, "p2", MPS)
    ask(w, "p3", ADVISORY)
    assert {name: mode for name, (mode, _) in decided(w).items()} == {"p2": "mps", "p3": "advisory"}


@pytest.mark.parametrize(
    ("made", "wanted", "says"),
    [
        (shared("a 1xT4", ("advisory",)), GpuRequest(permille=100, sharing=SHARE), "The nodes support: advisory"),
        (shared("a 1xT4", node=SHARE), GpuRequest(permille=100, sharing=MPS), "has set the mode share"),
        (shared("a 1xT4", node=WHOLE), GpuRequest(permille=100), "offers parts"),
        (shared("a 1xT4", ("advisory",)), GpuRequest(sharing=SHARE), "the sharing mode share"),
    ],
)
def test_mode_that_no_node_has_is_refused(made: Node, wanted: GpuRequest, says: str) -> None:
    w = begin(made)
    with pytest.raises(GpupoolError) as refused:
        w.scheduler.check_possible(wanted)
    assert says in refused.value.hint


def test_whole_gpu_may_request_share_mode_despite_policy() -> None:
    w = begin(shared("a 1xT4", node=MPS))
    ask(w, "p1", SHARE, permille=1000)
    assert decided(w) == {"p1": ("share", [0])}


def test_sharing_mode_of_gpu_changes_after_preemption() -> None:
    """The only place is a GPU in another mode: the replicas on it may be evicted."""
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
def test_arrays_agree_with_sharing_rule(
    gpus: list[tuple[tuple[str, ...], Sharing | None]], asked: Sharing | None
) -> None:
    """A slice is placed if and only if the rule for one GPU allows it, and gets the mode of the rule."""
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
def test_instance_is_granted_in_mig_mode_if_node_supports_it(offered: tuple[str, ...], mode: str) -> None:
    cut = shared("a 1xA100", offered)
    instance = replace(cut.report.gpus[0], model="A100 MIG 3g.40gb", mig_profile="3g.40gb", parent_uuid="a")
    w = begin(replace(cut, report=replace(cut.report, gpus=(instance,))))
    wanted = GpuRequest(models=("3g.40gb",))
    w.scheduler.apply(PendingAdded(PendingReplica(WorkloadId("p1"), 0, "red", "ann", wanted, NOW), NOW))
    assert decided(w) == {"p1": (mode, [0])}


def test_mps_gpu_serves_one_user() -> None:
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


def test_user_matters_if_policy_is_mps() -> None:
    """The policy applies to waiting workloads without a mode, and not to those with another mode."""
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


def test_slices_of_several_gpus_are_refused_for_mps() -> None:
    w = begin(shared("a 2xT4", node=MPS))
    for wanted in (GpuRequest(2, 250), GpuRequest(2, 250, sharing=MPS)):
        with pytest.raises(GpupoolError):
            w.scheduler.check_possible(wanted)
    w.scheduler.check_possible(GpuRequest(1, 250, sharing=MPS))


def test_eviction_frees_mps_gpu_for_another_user() -> None:
    w = begin(shared("a 1xT4"))
    ask(w, "low", MPS, preemptible=True, user="ben")
    assert "low" in decided(w)
    w.now += 1000
    ask(w, "high", MPS, priority=10)
    w.step()
    assert w.evicted == ["low"]
    assert decided(w)["high"] == ("mps", [0])
