"""Effects of failures of Ray and the network on a cluster's machines, and times to recover.

    sudo python benchmarks/cluster/ray_failures.py [--nodes 3]

Every machine is a network namespace of this one with a Ray of its own. For each failure: seconds until the pool calls
the node down ("-": it never did), seconds until it is up again, and whether the job that ran there was the same all
the time and its output whole.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "e2e"), str(TESTS / "ray")]

from ray_machines import Cluster, Machine, cluster  # noqa: E402 - found by the line above
from test_ray_cluster import Job, leased  # noqa: E402 - likewise

from gpupool.client.discovery import SYSTEM, Location  # noqa: E402 - likewise
from gpupool.daemon.local_api import ask  # noqa: E402 - likewise
from gpupool.domain.errors import GpupoolError  # noqa: E402 - likewise

WATCH_S = 16.0  # how long a node may stay up before "never" is believed
LONGEST_S = 240.0
POLL_S = 0.1


class Watch:
    """The state of a node over time, as the pool reports it."""

    def __init__(self, machines: Cluster, node: Machine) -> None:
        self._place = Location(str(machines.head.state), str(machines.head.run), SYSTEM)
        self._node = node.name

    def answers(self) -> bool:
        """Return whether the node is up and its GPUs can be queried."""
        try:
            return bool(ask(self._place, "GET", f"/v1/nodes/{self._node}", timeout_s=2.0)["state"] == "up")
        except (OSError, GpupoolError):
            return False

    def up(self) -> bool:
        """Return whether the pool reports the node as up."""
        views: list[Any] = ask(self._place, "GET", "/v1/nodes")["nodes"]
        return any(view["name"] == self._node and view["state"] == "up" for view in views)

    def measure(self, heal: Callable[[], None] | None) -> tuple[float | None, float]:
        """Return the seconds until it is down, and from then (or from the repair) until it answers."""
        began = time.monotonic()
        down: float | None = None
        while down is None and time.monotonic() - began < WATCH_S:
            if not self.up():
                down = time.monotonic() - began
            time.sleep(POLL_S)
        healed = time.monotonic() if heal else began
        if heal:
            heal()
        while not self.answers() and time.monotonic() - began < LONGEST_S:
            time.sleep(POLL_S)
        return down, time.monotonic() - healed


def failures(machines: Cluster, node: Machine) -> dict[str, tuple[Callable[[], object], Callable[[], None] | None]]:
    """Return the function that breaks a part, and the one that repairs it if that is necessary."""
    frozen: list[int] = []

    def freeze() -> None:
        frozen.append(node.kill_ray("ray::Relay", signal.SIGSTOP))
        frozen.append(node.kill_ray("raylet/raylet", signal.SIGSTOP))

    def thaw() -> None:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)

    head = machines.head
    return {
        "relay killed": (lambda: node.kill_ray("ray::Relay"), None),
        "bridge killed": (lambda: os.kill(head.pids()["bridge"], signal.SIGKILL), None),
        "GCS killed": (lambda: head.kill_ray("gcs/gcs_server"), None),
        "raylet killed": (lambda: node.kill_ray("raylet/raylet"), None),
        "Ray of the head killed": (lambda: os.kill(head.pids()["ray"], signal.SIGKILL), None),
        "raylet and relay frozen": (freeze, thaw),
        "network cut": (lambda: machines.wire.pull(node.space), lambda: machines.wire.plug(node.space)),
    }


def main() -> None:
    """Cause one failure after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    options = parser.parse_args()
    began = time.monotonic()
    with cluster(options.nodes) as machines:
        print(f"{options.nodes + 1} machines together after {time.monotonic() - began:.1f} s", flush=True)
        node = machines.nodes[0]
        print(f"{'what':<26}{'down after':>12}{'up again':>12}  job", flush=True)
        for name, (breaks, heals) in failures(machines, node).items():
            job = Job(machines, name.lower().replace(" ", "-"), node)
            breaks()
            down, up = Watch(machines, node).measure(heals)
            held = leased(machines)[node.name]
            job.ends_well()
            seen, back = ("-", "-") if down is None else (f"{down:.1f} s", f"{up:.1f} s")
            print(f"{name:<26}{seen:>12}{back:>12}  whole, started once, {held} of 1000 held", flush=True)


if __name__ == "__main__":
    main()
