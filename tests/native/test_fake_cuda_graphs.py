"""The fake driver: stream capture and graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_cuda_harness import Pool
from native_harness import MIB

pytest.importorskip("cuda.bindings")


@pytest.fixture
def pool(native_out: Path, fake_gpus: Path) -> Pool:
    return Pool(native_out / "fake", fake_gpus)


def test_captured_graph_takes_the_time_of_its_kernels(pool: Pool) -> None:
    found = pool.run("capture")
    assert found["status"] == "CU_STREAM_CAPTURE_STATUS_ACTIVE"
    assert found["nodes"] == 3
    assert 6.0 <= found["elapsed"] <= found["real"]


def test_forbidden_calls_fail_and_break_the_capture(pool: Pool) -> None:
    found = pool.run("broken_captures")
    broken = "STREAM_CAPTURE_INVALIDATED"
    assert found["found"] == [
        ["STREAM_CAPTURE_UNSUPPORTED", broken],
        ["STREAM_CAPTURE_UNSUPPORTED", broken],
        ["STREAM_CAPTURE_UNSUPPORTED", broken],
        ["STREAM_CAPTURE_UNSUPPORTED", broken],
        ["STREAM_CAPTURE_IMPLICIT", broken],
        ["STREAM_CAPTURE_ISOLATION", broken],
        ["SUCCESS", "SUCCESS", "SUCCESS"],
    ]
    assert found["others"] == ["STREAM_CAPTURE_UNSUPPORTED", broken, "SUCCESS", "SUCCESS"]
    assert found["legacy"] == "STREAM_CAPTURE_UNSUPPORTED"


def test_graph_runs_in_the_order_of_its_edges(pool: Pool) -> None:
    """Also as a child of another graph."""
    assert pool.run("built_graph") == [[2.0, 2.0], 2, 5]


def test_graph_memory_is_reserved_by_launch_and_released_by_trim(pool: Pool) -> None:
    found = pool.run("graph_memory")
    steps = [[value // MIB for value in step] for step in found["steps"]]
    nothing, in_use, cached = [0, 0, 0], [4, 4, 4], [4, 0, 4]
    assert steps == [nothing, in_use, in_use, cached, cached, nothing]
    assert found["again"] == "INVALID_VALUE"


def test_executable_graph_accepts_new_parameters_and_no_new_shape(pool: Pool) -> None:
    found = pool.run("update_graph")
    assert found["refused"] == "GRAPH_EXEC_UPDATE_FAILURE"
    for least, (elapsed, real) in zip((2.0, 8.0, 8.0), found["elapsed"], strict=True):
        assert least <= elapsed <= real
