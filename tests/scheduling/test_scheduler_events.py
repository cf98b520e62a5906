"""State of the scheduler between cycles: events from the control plane, and holds."""

from __future__ import annotations

from dataclasses import replace

from scheduling_world import NOW, node, pending, world

from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.nodes.gpu import NodeState
from gpupool.scheduling.scheduler import (
    GpusChanged,
    LeaseReleased,
    LeaseTaken,
    NodeChanged,
    NodeRemoved,
    NodeStateChanged,
    PendingAdded,
    PendingRemoved,
)
from gpupool.scheduling.state.gpu_links import best_subset, link_matrix, link_score
from gpupool.scheduling.values import EvictionKind, HoldKind, ReplicaKey


def key(name: str) -> ReplicaKey:
    return (WorkloadId(name), 0)


RECLAIM = ("a 1xT4", "p1 blue 1; p2 blue 1", "r1 red 1 on a:0 train", "red quota=0; blue quota=2")


def test_eviction_names_beneficiary_and_reason_and_creates_hold() -> None:
    s = world(*RECLAIM).scheduler
    decisions = s.decide(NOW)
    (eviction,) = decisions.evictions
    assert (eviction.key, eviction.for_workload, eviction.kind) == (key("r1"), "p1", EvictionKind.RECLAIM)
    assert eviction.reason == "red has 1.00 GPUs allocated, above its quota of 0.00; blue reclaims its share."
    (hold,) = decisions.holds
    assert (hold.key, hold.node, hold.kind) == (key("p1"), "a", HoldKind.NOMINATED)
    assert not decisions.grants


def test_eviction_for_another_user_of_the_project_names_both_users() -> None:
    running = "r1 red/ann 1 on a:0 train age=900; r2 red/ann 1 on a:1 train age=800"
    (eviction,) = world("a 2xT4", "p1 red/bob 1", running).scheduler.decide(NOW).evictions
    assert (eviction.key, eviction.kind) == (key("r2"), EvictionKind.RECLAIM)
    assert eviction.reason == (
        "ann has 2.00 GPUs allocated in red, above a share of 1.00 among its users; bob reclaims a share."
    )


def test_held_space_is_not_granted_while_victims_end() -> None:
    s = world(*RECLAIM).scheduler
    s.decide(NOW)
    s.apply(PendingAdded(pending("vip green 1 prio=9"), NOW))
    assert not s.decide(NOW + 1).grants
    s.apply(LeaseReleased(key("r1")))
    assert [grant.key for grant in s.decide(NOW + 2).grants] == [key("p1")]


def test_hold_ends_when_its_workload_no_longer_waits() -> None:
    s = world(*RECLAIM).scheduler
    s.decide(NOW)
    s.apply_all([PendingRemoved(key("p1")), LeaseReleased(key("r1"))])
    decisions = s.decide(NOW + 1)
    assert [grant.key for grant in decisions.grants] == [key("p2")]
    assert not decisions.holds


def test_workload_with_hold_starts_on_node_that_is_free_sooner() -> None:
    s = world(*RECLAIM).scheduler
    s.decide(NOW)
    s.apply(NodeChanged(node("b 1xT4")))
    assert [(g.key, g.node) for g in s.decide(NOW + 1).grants] == [(key("p1"), "b")]


def test_hold_on_lost_node_ends() -> None:
    s = world(*RECLAIM).scheduler
    s.decide(NOW)
    s.apply(NodeStateChanged("a", NodeState.DOWN))
    assert not s.decide(NOW + 1).holds
    s.apply(NodeRemoved("a"))
    assert not s.decide(NOW + 2).holds


def test_hold_on_failed_gpu_ends() -> None:
    s = world(*RECLAIM).scheduler
    s.decide(NOW)
    s.apply(GpusChanged("a", node("a 1xT4 failed=0").report.gpus))
    assert not s.decide(NOW + 1).holds


def test_grant_counts_once_before_and_after_confirmation() -> None:
    s = world("a 1xT4", "p1 red 0.6; p2 red 0.6").scheduler
    assert len(s.decide(NOW).grants) == 1
    granted = s.demand.running[key("p1")]
    s.apply(LeaseTaken(replace(granted, lease=replace(granted.lease, epoch=Epoch(7)))))
    assert s.cluster.gpu_free[0, 0] == 400
    assert not s.decide(NOW).grants


def test_grant_can_be_revoked() -> None:
    s = world("a 1xT4", "p1 red 1").scheduler
    s.decide(NOW)
    s.apply_all([LeaseReleased(key("p1")), PendingAdded(pending("p1 red 1"), NOW)])
    assert [grant.key for grant in s.decide(NOW).grants] == [key("p1")]


def test_cycle_reports_that_it_reached_its_bound() -> None:
    s = world("a 4xT4", "p1 red 1; p2 red 1; p3 red 1", max_grants=2).scheduler
    first, second = s.decide(NOW), s.decide(NOW)
    assert (len(first.grants), first.more) == (2, True)
    assert (len(second.grants), second.more) == (1, False)


def test_grants_are_returned_before_holds_are_searched() -> None:
    s = world("a 2xT4; b 1xT4", "p1 red 1 wait=720; p2 red 2 wait=700", "r1 red 1 on a:0 end=60").scheduler
    first, second = s.decide(NOW), s.decide(NOW)
    assert ([grant.key for grant in first.grants], first.holds, first.more) == ([key("p1")], (), True)
    assert (second.grants, [hold.key for hold in second.holds], second.more) == ((), [key("p2")], False)


def test_decision_has_wake_up_time() -> None:
    assert world("a 1xT4", "p1 red 1 later=90").scheduler.decide(NOW).wake_at == NOW + 90
    young = world("a 1xT4", "p1 blue 0.5", "r1 red 1 on a:0 train age=20", "red quota=0").scheduler
    assert young.decide(NOW).wake_at == NOW + 40
    whole = world("a 1xT4", "p1 red 1 wait=100", "r1 red 1 on a:0").scheduler
    assert whole.decide(NOW).wake_at == NOW + 200
    assert world("a 1xT4", "p1 red 0.5", "r1 red 1 on a:0").scheduler.decide(NOW).wake_at is None


def test_replica_starts_after_back_off() -> None:
    s = world("a 1xT4", "p1 red 1 later=90").scheduler
    assert not s.decide(NOW + 89).grants
    assert s.decide(NOW + 90).grants


def test_last_update_of_replica_applies() -> None:
    s = world("a 1xT4", "p1 red 1; p2 red 1").scheduler
    s.apply(PendingAdded(pending("p1 red 1 suspended"), NOW))
    assert [grant.key for grant in s.decide(NOW).grants] == [key("p2")]
    s.apply_all([LeaseReleased(key("p2")), PendingAdded(pending("p1 red 1"), NOW)])
    assert [grant.key for grant in s.decide(NOW).grants] == [key("p1")]


def test_hold_stays_until_its_replica_starts() -> None:
    w = world("a 2xT4", "p1 red 2 wait=900; p2 red 1 wait=5", "r1 blue 1 on a:0 end=50; r2 blue 1 on a:1 end=90")
    w.settle()
    (hold,) = w.scheduler.holds
    assert (hold.key, hold.kind, hold.starts_at) == (key("p1"), HoldKind.RESERVED, NOW + 90)
    w.scheduler.apply(LeaseReleased(key("r1")))
    assert not w.scheduler.decide(w.now).grants
    w.scheduler.apply(LeaseReleased(key("r2")))
    assert [grant.key for grant in w.scheduler.decide(w.now).grants] == [key("p1")]


def test_gpus_joined_by_nvlink_are_granted_together() -> None:
    w = world("a 4xT4 nvlink", "p1 red 2", "r1 red 1 on a:0")
    w.settle()
    assert w.slots("p1") == [2, 3]


def test_single_gpu_request_keeps_nvlink_pairs() -> None:
    w = world("a 4xT4 nvlink", "p1 red 1", "r1 red 1 on a:2")
    w.settle()
    assert w.slots("p1") == [3]


def test_better_links_decide_between_equally_full_nodes() -> None:
    w = world("a 2xT4; b 2xT4 nvlink", "p1 red 2")
    w.settle()
    assert w.places() == "p1@b"


def test_link_types_are_ranked() -> None:
    ranks = [link_score(link) for link in ("NV12", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS", "?")]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == len(ranks)
    assert best_subset(b"", (1, 2, 3), 2) == ((1, 2), 0)
    gpus = node("a 4xT4 nvlink").report.gpus
    assert best_subset(link_matrix(gpus), (0, 2, 3), 2) == ((2, 3), 64)


def test_request_by_memory_takes_smaller_share_of_larger_gpu() -> None:
    w = world("a 1xT4; b 1xA100", "p1 red 8000M model=t4; p2 red 8000M model=a100")
    w.settle()
    assert (w.permille("p1"), w.permille("p2")) == (500, 100)


def test_hold_does_not_make_its_project_a_victim() -> None:
    w = world(
        "a 3xT4",
        "p1 red 2 wait=700; p2 blue 1",
        "r1 red 1 on a:0 train; r2 red 1 on a:1 train; r3 blue 1 on a:2",
        "red quota=2",
    )
    w.settle()
    assert [(hold.key, hold.kind) for hold in w.scheduler.holds] == [(key("p1"), HoldKind.RESERVED)]
    assert w.evicted == []
