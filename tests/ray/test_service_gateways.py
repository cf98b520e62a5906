"""Services in a cluster with two heads: replicas on any node, a drain, a killed control plane, a lost leader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_pool import PATIENCE_S, eventually
from ray_machines import Machine, TwoHeads, two_heads

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(900)]
SERVER = Path(__file__).parents[2] / "examples" / "services" / "openai_server.py"
VISITOR = Path(__file__).with_name("service_visitor.py")
PORT = 8490
PATH = "v1/chat/completions"


@pytest.fixture(scope="module")
def heads(needed: None) -> Iterator[TwoHeads]:
    """Yield two heads and a node, each in a network namespace, and a database that all of them reach."""
    with two_heads(TwoHeads, 1) as made:
        yield made


def url(machine: Machine, service: str) -> str:
    return f"https://{machine.address}:{PORT}/s/default/{service}/{PATH}"


def visit(made: TwoHeads, machine: Machine, service: str) -> str:
    """Return the status of one request from another machine to the gateway of this one."""
    command = ["ip", "netns", "exec", made.nodes[0].space, sys.executable, str(VISITOR), url(machine, service)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S * 2)
    return done.stdout.strip()


class Visits:
    """Clients on the node that post to a service through the gateway of a machine without a pause."""

    def __init__(self, made: TwoHeads, machine: Machine, service: str, folder: Path) -> None:
        self._stop = folder / "stop"
        words = [sys.executable, str(VISITOR), url(machine, service), str(self._stop)]
        command = ["ip", "netns", "exec", made.nodes[0].space, *words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.go_on(20)

    @property
    def count(self) -> int:
        path = self._stop.with_suffix(".count")
        return int(path.read_text() or 0) if path.exists() else 0

    def go_on(self, more: int) -> bool:
        """Return whether that many more requests are answered."""
        before = self.count
        return eventually(lambda: self.count >= before + more, PATIENCE_S * 2)

    def end(self) -> dict[str, int]:
        """Stop, and return the number of answers by status."""
        self._stop.touch()
        out, _ = self._process.communicate(timeout=PATIENCE_S * 2)
        found: dict[str, int] = json.loads(out)
        return found


def serve(made: TwoHeads, name: str, *options: str, host: str = "{host}") -> None:
    words = ("serve", name, "-p", "0.1", "--access", "public", "--ready", "/health", *options, "--")
    made.head(*words, sys.executable, str(SERVER), "--port", "{port}", "--host", host)
    assert eventually(lambda: service(made, name)["state"] == "ready", PATIENCE_S * 3)


def service(made: TwoHeads, name: str) -> dict[str, Any]:
    found: dict[str, Any] = made.head.json("service", "describe", name)
    return found


def nodes_of(made: TwoHeads, name: str) -> list[str]:
    return [each["node"] for each in service(made, name)["replicas"]]


def directness(machine: Machine, name: str) -> list[bool]:
    """Return, for each replica in the stored table of a gateway, whether it is reached without its node's agent."""
    table = json.loads((machine.state / "gateway-table.json").read_text())
    return [replica["direct"] for route in table["routes"] if route["name"] == name for replica in route["replicas"]]


@pytest.mark.parametrize(("name", "host"), [("open", "{host}"), ("loopback", "127.0.0.1")])
def test_replica_on_another_node_answers_through_the_gateway_of_the_head(heads: TwoHeads, name: str, host: str) -> None:
    serve(heads, name, "--filter", "node=n1", host=host)
    assert nodes_of(heads, name) == ["n1"]
    assert eventually(lambda: visit(heads, heads.head, name) == "200", PATIENCE_S * 2)
    assert eventually(lambda: directness(heads.head, name) == [host == "{host}"])


def test_no_request_fails_while_a_node_is_drained(heads: TwoHeads, tmp_path: Path) -> None:
    serve(heads, "moves", "--replicas", "2", "--drain", "20s")
    drained = nodes_of(heads, "moves")[0]
    load = Visits(heads, heads.head, "moves", tmp_path)
    heads.head("drain", drained)
    assert eventually(lambda: drained not in nodes_of(heads, "moves"), PATIENCE_S * 3)
    assert service(heads, "moves")["ready"] == 2
    assert load.go_on(20)
    assert set(load.end()) == {"200"}
    heads.head("uncordon", drained)


def test_no_request_fails_when_the_control_plane_is_killed(heads: TwoHeads, tmp_path: Path) -> None:
    asked, other = heads.head, heads.other
    load = Visits(heads, asked, "moves", tmp_path)
    os.kill(asked.pids()["control-plane"], signal.SIGKILL)
    assert load.go_on(20)
    assert eventually(lambda: any(each("nodes", ok=False).returncode == 0 for each in (asked, other)), PATIENCE_S * 2)
    assert load.go_on(20)
    assert set(load.end()) == {"200"}


def test_gateway_of_the_standby_answers_at_the_same_path_when_the_leader_is_lost(heads: TwoHeads) -> None:
    if heads.head("nodes", ok=False).returncode != 0:
        heads.swap()  # the other head leads since the control plane was killed
    assert eventually(lambda: visit(heads, heads.head, "open") == "200", PATIENCE_S * 2)
    heads.head.die()
    heads.swap()
    assert eventually(lambda: heads.head("nodes", ok=False).returncode == 0, PATIENCE_S * 3)
    for name in ("open", "loopback"):
        assert eventually(lambda name=name: visit(heads, heads.head, name) == "200", PATIENCE_S * 4)  # type: ignore[misc]
