from dataclasses import replace

import numpy as np
import pytest
from scheduling_world import node

from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import ForeignProcess, GpuHealth, GpuShare, NodeState
from gpupool.scheduling.state.allocation import HeldAllocation
from gpupool.scheduling.state.cluster import ClusterState

KEY = (WorkloadId("w1"), 0)
OTHER = (WorkloadId("w2"), 0)


def half(uuid: str, where: str = "a") -> HeldAllocation:
    return HeldAllocation(where, (GpuShare(uuid, 0, 500, 8000),), 2000, 100)


def cluster(*lines: str) -> ClusterState:
    state = ClusterState()
    for line in lines:
        state.set_node(node(line))
    return state


def test_nodes_are_rows_padded_to_the_widest_node() -> None:
    state = cluster("a 2xT4 cpus=8 mem=1000", "b 4xT4")
    assert state.slots == 4
    assert state.gpu_free[state.rows["a"]].tolist() == [1000, 1000, 0, 0]
    assert state.cpu_free[state.rows["a"]] == 8000
    assert state.mem_free[state.rows["a"]] == 1000


def test_taken_gpus_are_not_free_until_freed() -> None:
    state = cluster("a 2xT4 cpus=8 mem=1000")
    state.take(KEY, half("a-0"))
    assert (state.gpu_free[0, 0], state.gmem_free[0, 0], state.cpu_free[0], state.mem_free[0]) == (500, 8000, 6000, 900)
    state.free(KEY)
    assert (state.gpu_free[0, 0], state.gmem_free[0, 0], state.cpu_free[0], state.mem_free[0]) == (
        1000,
        16000,
        8000,
        1000,
    )


def test_cordoned_gpu_is_unavailable_also_after_new_readings() -> None:
    state = ClusterState()
    made = node("a 2xT4")
    state.set_node(replace(made, cordoned_gpus={"a-1": "memory errors"}))
    assert state.available[0].tolist() == [True, False]
    state.set_gpus("a", made.report.gpus)
    assert state.available[0].tolist() == [True, False]
    assert state.healthy[0].tolist() == [True, True]
    state.set_node(made)
    assert state.available[0].tolist() == [True, True]


def test_cordon_of_a_card_covers_its_mig_instances() -> None:
    made = node("a 2xT4")
    gpus = tuple(replace(gpu, parent_uuid="GPU-card") for gpu in made.report.gpus)
    state = ClusterState()
    state.set_node(replace(made, report=replace(made.report, gpus=gpus), cordoned_gpus={"GPU-card": "why"}))
    assert not state.available.any()


def test_repeated_take_and_free_count_once() -> None:
    state = cluster("a 1xT4")
    state.take(KEY, half("a-0"))
    state.take(KEY, half("a-0"))
    assert state.gpu_free[0, 0] == 500
    state.free(KEY)
    state.free(KEY)
    assert state.gpu_free[0, 0] == 1000


def test_lease_on_missing_gpu_counts_its_cpu() -> None:
    state = cluster("a 2xT4 cpus=8")
    state.take(KEY, half("a-1"))
    state.set_node(node("a 1xT4 cpus=8"))
    assert state.gpu_free[0].tolist() == [1000, 0]
    assert state.cpu_free[0] == 6000
    state.set_node(node("a 2xT4 cpus=8"))
    assert state.gpu_free[0].tolist() == [1000, 500]


def test_lease_on_failed_gpu_counts() -> None:
    state = cluster("a 1xT4 failed=0")
    state.take(KEY, half("a-0"))
    assert not state.available[0, 0]
    assert state.gpu_free[0, 0] == 500


def test_lease_of_absent_node_counts_when_node_returns() -> None:
    state = cluster()
    state.take(KEY, half("a-0"))
    state.set_node(node("a 1xT4"))
    assert state.gpu_free[0, 0] == 500
    state.remove_node("a")
    assert KEY in state.holdings
    state.free(KEY)
    state.set_node(node("a 1xT4"))
    assert state.gpu_free[0, 0] == 1000


def test_row_of_removed_node_is_reused() -> None:
    state = cluster("a 4xT4", "b 1xT4")
    state.remove_node("a")
    state.set_node(node("c 2xT4"))
    assert state.rows == {"b": 1, "c": 0}
    assert state.gpu_free[0].tolist() == [1000, 1000, 0, 0]


def test_wider_node_keeps_existing_leases() -> None:
    state = cluster("a 1xT4")
    state.take(KEY, half("a-0"))
    state.set_node(node("b 4xT4"))
    state.free(KEY)
    assert state.gpu_free[0].tolist() == [1000, 0, 0, 0]


def test_health_and_foreign_processes_change_availability() -> None:
    state = cluster("a 2xT4")
    gpus = state.gpus[0]
    state.set_gpus("a", (replace(gpus[0], health=GpuHealth.FAILED), gpus[1]))
    assert state.available[0].tolist() == [False, True]
    state.set_gpus("a", (gpus[0], replace(gpus[1], foreign=(ForeignProcess(1, "x", "y", 1),))))
    assert state.available[0].tolist() == [True, False]
    state.set_gpus("nobody", gpus)


def test_gpu_added_by_update_is_available() -> None:
    state = cluster("a 1xT4")
    state.take(KEY, half("a-0"))
    state.set_gpus("a", node("a 2xT4").report.gpus)
    assert state.gpu_free[0].tolist() == [500, 1000]


def test_cordoned_nodes_are_not_up() -> None:
    state = cluster("a 1xT4")
    state.set_state("a", NodeState.CORDONED)
    assert not state.up[0]
    assert state.capacity_permille() == 0
    state.set_state("a", NodeState.UP)
    assert state.capacity_permille() == 1000


def test_overlapping_leases_give_negative_free_share() -> None:
    state = cluster("a 1xT4")
    whole = HeldAllocation("a", (GpuShare("a-0", 0, 1000, 16000),), 0, 0)
    state.take(KEY, whole)
    state.take(OTHER, whole)
    assert state.gpu_free[0, 0] == -1000
    state.free(KEY)
    assert state.gpu_free[0, 0] == 0


def test_node_change_during_trial_is_refused() -> None:
    state = cluster("a 1xT4")
    state.charge(state.claim_of(half("a-0")))
    with pytest.raises(RuntimeError):
        state.set_node(node("b 1xT4"))
    with pytest.raises(RuntimeError):
        state.remove_node("a")


def test_trial_is_undone_and_its_rows_are_marked_changed() -> None:
    state = cluster("a 1xT4 cpus=8", "b 1xT4")
    before, tick = state.gpu_free.copy(), state.tick
    state.charge(state.claim_of(half("a-0")))
    state.log.rollback(0)
    assert np.array_equal(before, state.gpu_free)
    assert state.touched[state.rows["a"]] > tick
    assert state.touched[state.rows["b"]] <= tick
