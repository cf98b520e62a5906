"""``gpupool verify --network`` over four nodes with networks of their own."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from apart import ip
from machines_harness import Machines

from gpupool.verify.schema import network_schema

pytestmark = pytest.mark.timeout(300)
NODES = ["n1", "n2", "n3", "n4"]


def limit(pool: Machines, rates: dict[str, str | None]) -> None:
    """Limit the rate at which each node sends; None ends the limit. Links without one are as fast as CPUs are free."""
    for name, rate in rates.items():
        queue = ("netns", "exec", vars(pool.nodes[name])["namespace"], "tc", "qdisc")
        if rate is None:
            ip(*queue, "del", "dev", "eth0", "root")
        else:
            ip(*queue, "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "300ms")


def measure(pool: Machines) -> tuple[int, dict[str, Any]]:
    done = pool("verify", "--network", "--json", ok=False, timeout=200)
    assert done.returncode in {0, 1, 2}, done.stderr.decode()
    found = json.loads(done.stdout)
    jsonschema.validate(found, network_schema(), cls=jsonschema.Draft202012Validator)
    return done.returncode, found


def test_every_pair_of_nodes_is_measured(pool: Machines) -> None:
    status, found = measure(pool)
    assert found["nodes"] == NODES
    pairs = [(pair["from"], pair["to"]) for pair in found["pairs"]]
    assert sorted(tuple(sorted(pair)) for pair in pairs) == [(a, b) for a in NODES for b in NODES if a < b]
    for pair in found["pairs"]:
        values = pair["values"]
        assert 0 < values["round_trip_ms"] < 1000
        assert values["send_mib_s"] > 1
        assert values["receive_mib_s"] > 1
        assert values["mtu_bytes"] == 1500
        assert abs(values["clock_offset_ms"]) < 100  # it is one machine
    assert (status == 0) == (found["outcome"] == "ok")
    reduced = found["all_reduce"]
    assert (reduced["outcome"], reduced["method"][:8]) == ("ok", "TCP ring")
    values = reduced["values"]
    assert values["size_mib"] == 16
    assert values["bus_mib_s"] == pytest.approx(1.5 * 16 / (values["round_ms"] / 1000))  # 2 (4 - 1) / 4


@pytest.mark.needs("netns")
def test_smaller_mtu_is_found_at_its_node(pool: Machines) -> None:
    namespace = vars(pool.nodes["n3"])["namespace"]
    ip("-n", namespace, "link", "set", "eth0", "mtu", "1400")
    try:
        status, found = measure(pool)
    finally:
        ip("-n", namespace, "link", "set", "eth0", "mtu", "1500")
    assert status == 1
    notes = {(pair["from"], pair["to"]): pair["note"] for pair in found["pairs"]}
    found_at = {nodes for nodes, note in notes.items() if "the MTU is 1400, that of other pairs 1500" in note}
    assert found_at == {("n1", "n3"), ("n2", "n3"), ("n3", "n4")}


@pytest.mark.needs("netns")
def test_all_reduce_is_as_slow_as_the_slowest_link(pool: Machines) -> None:
    limit(pool, {name: "80mbit" if name == "n2" else "400mbit" for name in NODES})
    try:
        _, found = measure(pool)
    finally:
        limit(pool, dict.fromkeys(NODES))
    assert 1 < found["all_reduce"]["values"]["bus_mib_s"] < 12  # 80 Mbit/s are 9.5 MiB/s
    slow = {(pair["from"], pair["to"]) for pair in found["pairs"] if pair["outcome"] == "suspect"}
    assert slow == {("n1", "n2"), ("n2", "n3"), ("n2", "n4")}
