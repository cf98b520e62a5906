"""Work of a project runs only on nodes of the node pools in its rules."""

import pytest
from scheduling_world import NOW, node, request, world

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.explain.wait_reason import WaitCode
from gpupool.scheduling.scheduler import NodeChanged
from gpupool.scheduling.state.cluster import Shapes


@pytest.mark.parametrize(
    ("nodes", "pending", "places"),
    [
        ("a 1xT4 pool=old; b 1xT4 pool=new", "p1 red 1 pool=new", "p1@b"),
        ("a 1xT4 pool=old; b 1xT4", "p1 red 1 pool=new", ""),
        ("a 1xT4 pool=old; b 1xT4 pool=new", "p1 red 1 pool=new,other; p2 red 1 pool=new,old", "p1@b p2@a"),
        ("a 1xT4 pool=old; b 1xT4 pool=new", "p1 red 1 pool=new; p3 blue 1; p2 red 1 pool=new", "p1@b p3@a"),
    ],
)
def test_work_is_placed_in_allowed_pools(nodes: str, pending: str, places: str) -> None:
    w = world(nodes, pending)
    w.settle()
    assert w.places() == places


def test_no_eviction_on_node_of_other_pool() -> None:
    w = world("a 1xT4 pool=old", "p1 red 1 pool=new", "r1 blue 1 on a:0 train", "red quota=1; blue quota=0")
    w.settle()
    assert not w.evicted


def test_later_label_allows_start() -> None:
    w = world("a 1xT4", "p1 red 1 pool=new")
    w.settle()
    found = w.scheduler.explain((WorkloadId("p1"), 0), NOW)
    assert found is not None
    assert found.code is WaitCode.TOO_LARGE
    assert "the pool new" in found.sentence
    w.scheduler.apply(NodeChanged(node("a 1xT4 pool=new")))
    w.settle()
    assert w.places() == "p1@a"


def test_wait_reason_names_free_capacity_in_other_pools() -> None:
    w = world("a 1xT4 pool=old; b 1xT4 pool=new", "p1 red 1 pool=new", "r1 blue 1 on b:0")
    w.settle()
    found = w.scheduler.explain((WorkloadId("p1"), 0), NOW)
    assert found is not None
    assert found.code is WaitCode.OTHER_NODE_POOL
    assert found.numbers["pools"] == "new"


def test_request_that_no_pool_can_serve_is_refused() -> None:
    w = world("a 1xT4 pool=old")
    with pytest.raises(GpupoolError, match="No node can provide") as caught:
        w.scheduler.check_possible(request("1", {}), pools=("new",))
    assert caught.value.code is ErrorCode.IMPOSSIBLE_REQUEST
    assert "the pool new" in caught.value.hint


def test_pools_distinguish_shapes() -> None:
    shapes = Shapes()
    one = shapes.get(request("1", {}), 0, 0, pools=("a",))
    assert shapes.get(request("1", {}), 0, 0, pools=("a",)) is one
    assert shapes.get(request("1", {}), 0, 0) is not one
