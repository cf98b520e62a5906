"""The judgement of pairs of nodes, and members that do not know the key."""

from __future__ import annotations

import socket
import threading
import time
from queue import Queue
from typing import Any

import pytest

from gpupool.verify import network
from gpupool.verify.network import (
    Rings,
    accept,
    connect,
    join,
    judge,
    judge_ring,
    keep_best,
    lead,
    listen,
    measure,
    report,
    serve,
    slow_rates,
)
from gpupool.verify.results import CheckOutcome

GOOD = {
    "round_trip_ms": 0.1,
    "send_mib_s": 1000.0,
    "receive_mib_s": 1000.0,
    "mtu_bytes": 1500.0,
    "clock_offset_ms": 0.2,
}


def pair(**changes: float) -> dict[str, Any]:
    return {"from": "a", "to": "b", "values": GOOD | changes}


@pytest.mark.parametrize(
    ("changes", "outcome", "note"),
    [
        ({}, CheckOutcome.OK, ""),
        ({"send_mib_s": 499.0}, CheckOutcome.SUSPECT, "send_mib_s is 499: 50 % of the median"),
        ({"receive_mib_s": 10.0}, CheckOutcome.SUSPECT, "receive_mib_s is 10: 1 % of the median"),
        ({"mtu_bytes": 1400.0}, CheckOutcome.SUSPECT, "the MTU is 1400, that of other pairs 1500"),
        ({"clock_offset_ms": -2500.0}, CheckOutcome.SUSPECT, "the clocks differ by -2.5 s"),
    ],
)
def test_pair_is_compared_with_the_others(changes: dict[str, float], outcome: CheckOutcome, note: str) -> None:
    one = pair(**changes)
    check = judge(one, [one, pair(), pair()])
    assert check.outcome is outcome
    assert note in check.note


def test_two_pairs_are_not_compared_by_rate() -> None:
    slow = pair(send_mib_s=1.0)
    assert judge(slow, [slow, pair()]).outcome is CheckOutcome.OK


def test_pair_is_slow_only_if_it_is_slow_each_time() -> None:
    """A busy node slows one measurement; a bad link slows all of them."""
    pairs = [pair(send_mib_s=100.0, receive_mib_s=900.0), pair(), pair()]
    assert slow_rates(pairs[0], pairs) == {"send_mib_s": 1000.0}
    keep_best(pairs[0], pair(send_mib_s=120.0, receive_mib_s=100.0, round_trip_ms=0.3))
    assert pairs[0]["values"] == GOOD | {"send_mib_s": 120.0, "receive_mib_s": 900.0}
    assert slow_rates(pairs[0], pairs) == {"send_mib_s": 1000.0}
    keep_best(pairs[0], pair(send_mib_s=990.0))
    assert slow_rates(pairs[0], pairs) == {}


def test_pair_that_loses_its_connection_fails() -> None:
    lost = pair(send_mib_s=100.0)
    keep_best(lost, {"error": "timed out"})
    assert judge(lost, [lost, pair(), pair()]).outcome is CheckOutcome.FAIL


def test_busy_node_is_not_a_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three members over real connections; the first measurement between two of them is made slow."""
    taken: list[float] = []

    def measured(address: str, port: int, key: str) -> dict[str, float]:
        taken.append(found := measure(address, port, key)["send_mib_s"])
        return GOOD | {"send_mib_s": 1.0 if len(taken) == 1 else found + 100.0}

    monkeypatch.setattr(network, "measure", measured)
    monkeypatch.setattr(network, "SEND_S", 0.05)
    members = []
    for name in "abc":
        own, rings = listen(0), Rings()
        threading.Thread(target=serve, args=(own, "key", rings), daemon=True).start()
        members.append(({"node": name, "port": own.getsockname()[1]}, rings))
    with listen(0) as server:
        port = server.getsockname()[1]
        for me, rings in members[1:]:
            threading.Thread(target=join, args=("127.0.0.1", port, "key", me, rings), daemon=True).start()
        me, rings = members[0]
        found = lead(server, 3, "key", me | {"address": "127.0.0.1"}, rings)
    assert len(taken) > 3
    assert found["pairs"][0]["values"]["send_mib_s"] > 100.0
    assert all("send_mib_s is 1:" not in one["note"] for one in found["pairs"])
    assert found["all_reduce"]["outcome"] == "ok"


def test_pair_without_connection_fails() -> None:
    reduced = judge_ring(["a", "b"], [{"seconds": [1.0], "correct": True}] * 2)
    made = report(["a", "b"], [{"from": "a", "to": "b", "error": "timed out"}], reduced)
    assert made["outcome"] == "fail"
    assert made["pairs"][0]["note"] == "no connection: timed out"


def test_member_is_measured() -> None:
    server = listen(0)
    threading.Thread(target=serve, args=(server, "key", Queue()), daemon=True).start()
    found = measure("127.0.0.1", server.getsockname()[1], "key")
    assert set(found) == set(GOOD)
    assert found["send_mib_s"] > 1
    assert found["receive_mib_s"] > 1
    assert abs(found["clock_offset_ms"]) < 100


def test_connection_with_another_key_is_closed() -> None:
    with listen(0) as server:
        port = server.getsockname()[1]
        accepted: list[Any] = []
        thread = threading.Thread(target=lambda: accepted.append(accept(server, "key")))
        thread.start()
        with connect("127.0.0.1", port, "other", time.monotonic() + 10) as stranger:
            assert stranger.recv(1) == b""
        with connect("127.0.0.1", port, "key", time.monotonic() + 10):
            thread.join()
        connection, address = accepted[0]
        assert address == "127.0.0.1"
        assert isinstance(connection, socket.socket)
        connection.close()
