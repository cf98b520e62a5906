"""A request that names a GPU gets that one: a suspended program continues where its memory was."""

from __future__ import annotations

import pytest
from scheduling_world import NOW, world

from gpupool.domain.ids import WorkloadId


@pytest.mark.parametrize("size", ["1", "0.5", "2000M"])
@pytest.mark.parametrize("gpu", [0, 1, 2])
def test_request_gets_the_gpu_that_it_names(size: str, gpu: int) -> None:
    w = world("a 3xT4; b 2xT4", f"p1 red {size} gpu=a-{gpu}")
    w.settle()
    assert [share.gpu_uuid for share in w.running[WorkloadId("p1"), 0].lease.shares] == [f"a-{gpu}"]


@pytest.mark.parametrize("size", ["1", "0.5"])
def test_request_waits_for_its_gpu_beside_free_ones(size: str) -> None:
    w = world("a 2xT4", f"p1 red {size} gpu=a-0", "r1 red 1 on a:0")
    w.settle()
    assert w.places() == "r1@a"
    assert w.scheduler.explain((WorkloadId("p1"), 0), NOW) is not None


def test_other_work_uses_other_gpus_meanwhile() -> None:
    w = world("a 2xT4", "p1 red 1 gpu=a-0; p2 red 1", "r1 red 1 on a:0")
    w.settle()
    assert w.places() == "p2@a r1@a"


@pytest.mark.parametrize("size", ["1", "0.5"])
def test_work_is_preempted_on_its_gpu_only(size: str) -> None:
    running = "r1 red 1 on a:0 train age=900; r2 red 1 on a:1 train age=100"
    w = world("a 2xT4", f"p1 red {size} prio=1 gpu=a-1", running)
    w.settle()
    assert w.evicted == ["r2"]
    assert [share.gpu_uuid for share in w.running[WorkloadId("p1"), 0].lease.shares] == ["a-1"]


@pytest.mark.parametrize("size", ["1", "0.5"])
def test_gpu_is_reclaimed_for_a_project_with_a_quota(size: str) -> None:
    running = "r1 blue 1 on a:0 train age=900; r2 blue 1 on a:1 train age=100"
    w = world("a 2xT4", f"p1 red {size} gpu=a-1", running, "red quota=1; blue quota=0")
    w.settle()
    assert "p1@a" in w.places().split()
    assert [share.gpu_uuid for share in w.running[WorkloadId("p1"), 0].lease.shares] == ["a-1"]


def test_gpu_that_is_gone_keeps_the_request_waiting() -> None:
    w = world("a 2xT4", "p1 red 1 gpu=a-7")
    w.settle()
    assert w.places() == ""
