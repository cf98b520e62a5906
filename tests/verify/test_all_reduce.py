"""The ring all-reduce: exact results for any number of members and any size, and defined errors."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import reduce

import pytest

from gpupool.verify import all_reduce
from gpupool.verify.all_reduce import ReduceRing, expected, measure_ring, part_bounds, pattern
from gpupool.verify.network import judge_ring
from gpupool.verify.results import bus_bandwidth


def rings(count: int, stack: ExitStack) -> list[ReduceRing]:
    """Return the members of a ring, connected by socket pairs."""
    links = [socket.socketpair() for _ in range(count)]  # from each member to the next one
    made = [ReduceRing(rank, count, links[rank][0], links[rank - 1][1]) for rank in range(count)]
    for ring in made:
        stack.callback(ring.close)
    return made


@pytest.mark.parametrize("count", [2, 3, 5, 16])
@pytest.mark.parametrize("size", [1, 17, 100_003])
@pytest.mark.parametrize("numpy", [True, False], ids=["NumPy", "Python"])
def test_each_member_gets_the_result_of_all(
    count: int, size: int, numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not numpy:
        monkeypatch.setattr(all_reduce, "np", None)
    data = [bytearray(pattern(rank)[:size]) for rank in range(count)]
    wanted = bytes(reduce(lambda a, b: a ^ b, column) for column in zip(*data, strict=True))
    with ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda ring, own: ring.reduce(own), rings(count, stack), data))
    assert all(each == wanted for each in data)


def test_all_rounds_are_measured_and_checked() -> None:
    with ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda ring: measure_ring(ring, 2, 4), rings(3, stack)))
    assert [(len(each["seconds"]), each["correct"]) for each in found] == [(4, True)] * 3


def test_wrong_data_of_one_member_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = expected(2)
    monkeypatch.setattr(all_reduce, "expected", lambda _count: right)
    monkeypatch.setattr(all_reduce, "pattern", lambda rank: bytes(1 << 20) if rank == 1 else pattern(rank))
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda ring: measure_ring(ring, 1, 1), rings(2, stack)))
    assert not any(each["correct"] for each in found)
    assert judge_ring(["a", "b"], found)["note"] == "wrong results on a, b"


def test_lost_member_is_named() -> None:
    with ExitStack() as stack:
        first, second = rings(2, stack)
        second.close()
        with pytest.raises(OSError, match=r".+"):
            first.reduce(bytearray(100))
    judged = judge_ring(["a", "b"], [{"seconds": [1.0], "correct": True}, {"error": "Connection reset"}])
    assert (judged["outcome"], judged["note"], judged["values"]) == ("fail", "b: Connection reset", {})


def test_bus_bandwidth_follows_the_definition_of_nccl_tests() -> None:
    assert bus_bandwidth(16, 2.0, 2) == 8
    assert bus_bandwidth(16, 2.0, 4) == 12
    assert part_bounds(10, 4) == [(0, 2), (2, 5), (5, 7), (7, 10)]
    slowest = [{"seconds": [1.0, 1.0, 9.0], "correct": True}, {"seconds": [2.0, 1.0, 1.0], "correct": True}]
    assert judge_ring(["a", "b"], slowest)["values"] == {"bus_mib_s": 8.0, "round_ms": 2000.0, "size_mib": 16.0}
