"""The fake driver: simulated time, within a process and shared between processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fake_cuda_harness import Pool, counters

pytestmark = pytest.mark.alone  # it looks at what happens within milliseconds

pytest.importorskip("cuda.bindings")


@pytest.fixture
def pool(native_out: Path, fake_gpus: Path) -> Pool:
    return Pool(native_out / "fake", fake_gpus)


def test_events_measure_simulated_time(pool: Pool) -> None:
    found = pool.run("events")
    assert 5.0 <= found["elapsed"] <= found["real"]
    assert found["told"] == ["NOT_READY", "NOT_READY", "INVALID_HANDLE", "SUCCESS"]


def test_streams_wait_by_the_rules(pool: Pool) -> None:
    assert pool.run("order") == ["SUCCESS", "NOT_READY", "NOT_READY", "NOT_READY", "SUCCESS"]


def test_known_kernels_compute_and_bad_pointers_are_sticky_errors(pool: Pool) -> None:
    assert pool.run("computes") == [True, "ILLEGAL_ADDRESS", "ILLEGAL_ADDRESS"]


def test_launch_waits_if_too_much_is_queued(pool: Pool) -> None:
    assert pool.run("queue_depth") >= 60


@pytest.mark.parametrize(("per_thread", "told"), [("0", "NOT_READY"), ("1", "SUCCESS")])
def test_default_stream_is_legacy_or_per_thread(pool: Pool, per_thread: str, told: str) -> None:
    assert pool.run("default_stream", CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM=per_thread) == told


def test_host_function_blocks_only_its_stream(pool: Pool) -> None:
    found = pool.run("host_functions")
    assert found["seen"] == [["NOT_PERMITTED", False], ["slept", False]]
    assert found["told"] == "NOT_READY"
    assert found["others_go_on"]
    assert found["after"] == "SUCCESS"


@pytest.mark.parametrize(("first", "second"), [("spin_1ms", "spin_1ms"), ("spin_200us", "spin_5ms")])
def test_two_processes_share_the_gpu_equally(pool: Pool, first: str, second: str) -> None:
    """With kernels of any length the slices are equal, and together they have all of the time."""
    clients = [pool.start("saturate", 2, which) for which in (first, second)]
    for client in clients:
        assert client.stdout is not None
        client.stdout.readline()
    start = time.monotonic_ns()
    for client in clients:
        assert client.stdin is not None
        client.stdin.write("\n")
        client.stdin.flush()
    for client in clients:
        client.communicate(timeout=30)
    real = time.monotonic_ns() - start
    served = [counters(pool)[client.pid].served_ns for client in clients]
    assert sum(served) <= real
    assert sum(served) > 1_200_000_000  # of two seconds, on a machine that has other things to do
    assert 0.3 < served[0] / sum(served) < 0.7


def test_single_process_has_the_whole_gpu(pool: Pool) -> None:
    client = pool.start("saturate", 1, "spin_1ms")
    client.communicate("\n", timeout=30)
    mine = counters(pool)[client.pid]
    assert mine.served_ns == mine.kernels * 1_000_000
    assert mine.served_ns > 600_000_000
