"""A machine so busy that what stands for Ray's agents starts late still becomes a node."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from e2e_pool import eventually
from ray_machines import Cluster, Machine

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(300)]
RAYS_OWN_LIMIT_S = 15.0  # for the agents to write their ports; the raylet dies of it


RAYLET = "raylet/raylet"


def of_raylet(machine: Machine) -> dict[int, str]:
    """Return the processes that any thread of a machine's raylet started, with their names.

    First the two that stand for its agents, then workers, all of which are the pool's own.
    """
    raylets = {pid for pid, name in machine.processes().items() if RAYLET in name}
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) in raylets:
                name = (stat.parent / "cmdline").read_bytes().rstrip(b"\0").decode()
                found[int(stat.parent.name)] = name
    return found


def workers(machine: Machine) -> list[int]:
    return [pid for pid, name in of_raylet(machine).items() if name.startswith("ray::")]


def test_relay_has_priority_of_pool(machines: Cluster) -> None:
    """Ray would have its workers at niceness 15, and first to be killed when memory runs out."""
    node = machines.nodes[0]
    assert eventually(lambda: workers(node))
    own = os.getpriority(os.PRIO_PROCESS, node.pids()["ray"])
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in workers(node)} == {own}
    assert {int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in workers(node)} == {0}


def test_slow_agents_do_not_end_ray(machines: Cluster) -> None:
    node = machines.nodes[0]
    first, runs = node.pids()["ray"], node.log("ray").count('"ray runs"')
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: node.pids().get("ray") not in {first, None})
    second, held = node.pids()["ray"], set[int]()

    def hold() -> bool:
        for pid in of_raylet(node).keys() - held:
            os.kill(pid, signal.SIGSTOP)
            held.add(pid)
        return len(held) >= 2

    assert eventually(hold)
    begun = time.monotonic()
    try:
        assert eventually(lambda: time.monotonic() > begun + RAYS_OWN_LIMIT_S + 5)
        assert node.pids()["ray"] == second, node.log("ray")[-2000:]
        assert eventually(lambda: node.log("ray").count('"ray runs"') == runs + 1)
    finally:
        for pid in held:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert machines.becomes(node.name, "up")
