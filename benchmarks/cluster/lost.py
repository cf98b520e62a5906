"""Time to detect a lost machine, to reconnect it, and to restart its work; cost of a remote node.

`python benchmarks/cluster/lost.py [--rounds 3] [--log-mib 64]`: four real agents on this machine, each behind a proxy
that is cut or frozen; agents are stopped and killed. The defaults of a pool apply: a heartbeat every two seconds,
lost after ten. `--recover` also waits until the work of a disconnected node runs on another one, with the shortest
`--node-lost-after`. It also compares the start of a program and the reading of its output on a node behind the proxy
with the same on the control plane's own node. Prints a table and writes results/cluster_lost.json.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "node"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "e2e"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "machines"))

from e2e_pool import COMMAND
from machines_harness import Machine, Machines, Weather, machines

from _common import machine, percentile, table, until, write_result

LOST_AFTER_S = 20
MIB = 1 << 20
BREAKS: dict[str, tuple[Callable[[Machine], None], Callable[[Machine], None]]] = {
    "agent killed (-9)": (Machine.kill, Machine.start),
    "agent stopped": (Machine.freeze, Machine.thaw),
    "network cut": (lambda node: node.weather(Weather.CUT), lambda node: node.weather(Weather.FINE)),
    "network frozen": (lambda node: node.weather(Weather.FROZEN), lambda node: node.weather(Weather.FINE)),
    "answers do not come": (lambda node: node.weather(Weather.DEAF), lambda node: node.weather(Weather.FINE)),
}


def timed(act: Callable[[], object], seen: Callable[[], object]) -> float:
    """Return the seconds from an action until its effect is seen."""
    began = time.monotonic()
    act()
    if not until(seen, 120.0, 0.01):
        raise RuntimeError("never seen")
    return time.monotonic() - began


def breaks(pool: Machines, rounds: int) -> dict[str, dict[str, float]]:
    """Measure each way to lose a node: time until it is down and, after repair, until it is up."""
    found = {}
    node = pool.nodes["n2"]
    for name, (hurt, heal) in BREAKS.items():
        down, up = [], []
        for _ in range(rounds):
            down.append(timed(lambda: hurt(node), lambda: pool.node_states()["n2"] == "down"))  # noqa: B023 - called at once
            up.append(timed(lambda: heal(node), lambda: pool.node_states()["n2"] == "up"))  # noqa: B023 - called at once
        found[name] = {
            "noticed_s": round(percentile(down, 50), 2),
            "noticed_most_s": round(max(down), 2),
            "back_s": round(percentile(up, 50), 2),
        }
    return found


def recover(pool: Machines) -> float:
    """Measure the time from a cut until the work runs on another node."""
    pool("policy", "set", "--node-lost-after", f"{LOST_AFTER_S}s")
    pool("submit", "moved", "-g", "1", "--", "sh", "-c", "while :; do sleep 1; done")
    pool.becomes("moved", "running")
    node = pool.nodes[pool.node_of("moved")]
    took_s = timed(
        lambda: node.weather(Weather.CUT),
        lambda: pool.replica("moved")["attempt"] == 2 and pool.state_of("moved") == "running",
    )
    node.weather(Weather.FINE)
    pool.clear()
    return took_s


def program_s(pool: Machines, where: str) -> float:
    """Measure the whole command `gpupool run -- true` on a node."""
    began = time.monotonic()
    pool("run", "-g", "1", "--pool", where, "--", "true")
    return time.monotonic() - began


def started_s(pool: Machines, where: str) -> float:
    """Measure the time from submission to the recorded start of the program."""
    name = f"timed-{time.monotonic_ns()}"
    pool.submit(name, "sleep 0.2", gpus={"count": 1, "labels": {"pool": where}})
    pool.becomes(name, "succeeded")
    row = pool.replica(name)
    return float(row["started_at"] - row["queued_at"])


def log_mib_s(pool: Machines, where: str, mib: int) -> float:
    """Measure how fast `gpupool logs` reads the output of a program on a node."""
    name = f"wrote-{where}"
    line = f"head -c {mib * MIB} /dev/zero | tr '\\0' x | fold -w 99"
    pool("submit", name, "-g", "1", "--log-limit", f"{2 * mib}M", "--pool", where, "--", "sh", "-c", line)
    pool.becomes(name, "succeeded")
    began = time.monotonic()
    subprocess.run([str(COMMAND), "logs", name], env=pool.env, stdout=subprocess.DEVNULL, check=True)
    return mib / (time.monotonic() - began)


def distance(pool: Machines, rounds: int, mib: int) -> dict[str, dict[str, float]]:
    """Measure the control plane's own machine and a node behind a proxy, alternating."""
    pool.add("head", "1xT4")
    pool.node_becomes("head", "up")
    for node, where in (("head", "near"), ("n1", "far")):
        pool("node", "label", node, f"pool={where}")
    took: dict[str, list[tuple[float, float]]] = {"near": [], "far": []}
    for _ in range(rounds):
        for where, times in took.items():
            times.append((program_s(pool, where), started_s(pool, where)))
    return {
        where: {
            "run_true_ms": round(percentile([t[0] for t in times], 50) * 1000, 1),
            "queued_to_started_ms": round(percentile([t[1] for t in times], 50) * 1000, 1),
            "logs_mib_per_s": round(log_mib_s(pool, where, mib), 1),
        }
        for where, times in took.items()
    }


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--log-mib", type=int, default=48)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--recover", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": machine()}
    with machines(3, "1xT4") as pool:
        result["breaks"] = breaks(pool, options.rounds)
        if options.recover:
            result["recovered_s"] = round(recover(pool), 1)
        result["distance"] = distance(pool, options.starts, options.log_mib)
    rows = [[name, *(f"{seconds} s" for seconds in found.values())] for name, found in result["breaks"].items()]
    print(table(("failure", "down after (p50)", "down after (max)", "up again after"), rows))
    near, far = result["distance"]["near"], result["distance"]["far"]
    print(table(("", "own node", "behind a proxy"), [(name, near[name], far[name]) for name in near]))
    if options.recover:
        print(f"work of a cut node is retried after {result['recovered_s']} s ({LOST_AFTER_S} s of them chosen)")
    write_result("cluster_lost", result)


if __name__ == "__main__":
    main()
