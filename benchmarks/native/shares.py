"""Division of GPU time between tenants: real processes, the share library, the arbiter, on simulated GPUs.

`python benchmarks/native/shares.py [--seconds 20]`: for each scenario the part of the served time that tenants got,
the worst error in points over any 1 s and any 10 s, the part of the time in which the GPU was at work, and how long
answers took where a tenant works in bursts. "Without" are the same programs on the bare driver, as time slices of
equal length would serve them. Scenarios of a group run at once, each on its own GPU: simulated kernels cost no
processor time, but launches do. Prints a table and writes results/shares.json. Needs a C compiler.

This does not include the cost of switching contexts on a real GPU. See benchmarks/gpu for that.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests/native"))

from lease_folder import POLICY_CAP, POLICY_NONE
from native_harness import build_native
from shares_model import Measured, Program, Scenario, measure

from _common import machine, percentile, table, write_result

TINY, MIDDLE, LONG, MIXED = "queue 50", "queue 5000", "queue 30000", "queue 50 5000 50 30000"
GRAPH, SYNC, BURST = "graph 100 200 300 400", "sync 1000", "burst 5000 50000 500"


def pair(first: str, second: str, weight: int, *, gated: bool = True) -> Scenario:
    """Return a scenario of two tenants with these shares."""
    name = f"{weight // 10}:{100 - weight // 10} {first} / {second}"
    programs = (Program(first, weight), Program(second, 1000 - weight))
    return Scenario(name if gated else f"without: {first} / {second}", programs, gated)


def several(name: str, *programs: Program, gated: bool = True) -> Scenario:
    """Return a scenario by name."""
    return Scenario(name if gated else f"without: {name}", programs, gated)


PERSISTENT = "persistent 10 100 10000 50 3000 1000 20 5000"
THREE = (Program(MIXED, 200), Program(SYNC, 300), Program(GRAPH, 500))
TEN = tuple(Program(f"queue {us}", 100) for us in (200, 500, 5000, 8000, 300) * 2)
INTERACTIVE = (Program(BURST, 500), Program(MIDDLE, 500))
GROUPS = (
    (pair(TINY, TINY, 100), pair(TINY, TINY, 250), pair(TINY, TINY, 500), pair(TINY, TINY, 500, gated=False)),
    (pair(LONG, TINY, 100), pair(LONG, TINY, 250), pair(LONG, TINY, 500), pair(LONG, TINY, 500, gated=False)),
    (pair(TINY, LONG, 100), pair(MIDDLE, LONG, 250), pair(MIXED, MIXED, 500), pair(MIDDLE, LONG, 500, gated=False)),
    (pair(GRAPH, TINY, 100), pair(GRAPH, GRAPH, 250), pair(SYNC, MIDDLE, 500), pair(GRAPH, SYNC, 500, gated=False)),
    (
        pair(PERSISTENT, PERSISTENT, 250),
        pair(PERSISTENT, TINY, 500),
        pair(PERSISTENT, LONG, 100),
        pair(PERSISTENT, TINY, 500, gated=False),
    ),
    (several("three", *THREE), several("three", *THREE, gated=False)),
    (several("ten", *TEN), several("ten", *TEN, gated=False)),
    (
        several("interactive", *INTERACTIVE),
        several("interactive, a fifth", Program(BURST, 200), Program(MIDDLE, 800)),
        several("interactive", *INTERACTIVE, gated=False),
        several("interactive, alone", Program(BURST, 500)),
    ),
    (
        several("alone", Program(TINY, 100)),
        several("cap 30, alone", Program(MIDDLE, 300, POLICY_CAP)),
        several("cap 30 and 70", Program(MIDDLE, 300, POLICY_CAP), Program(MIDDLE, 700)),
        several("policy none", Program(MIDDLE, 100, POLICY_NONE), Program(MIDDLE, 900, POLICY_NONE)),
    ),
)


def in_words(one: Measured) -> dict[str, Any]:
    """Return the results of a scenario."""
    said: dict[str, Any] = {
        "scenario": one.scenario.name,
        "programs": [program.does for program in one.scenario.programs],
        "seconds": round(one.seconds, 2),
        "due_percent": [round(due, 2) for due in one.scenario.due],
        "got_percent": [round(got, 2) for got in one.shares],
        "worst_error_1s_points": round(one.worst_error(1), 2),
        "worst_error_10s_points": round(one.worst_error(10), 2),
        "utilisation_percent": round(one.utilisation, 2),
        "grants": one.grants,
        "ungated": one.ungated,
    }
    if responses := one.responses_us[0]:
        said["response_ms"] = {
            "n": len(responses),
            "p50": round(percentile(responses, 50) / 1000, 2),
            "p99": round(percentile(responses, 99) / 1000, 2),
        }
    return said


def row(said: dict[str, Any]) -> tuple[object, ...]:
    """Return a line of the table."""
    saturating = len(said["programs"]) > 1 and "response_ms" not in said and "none" not in said["scenario"]
    errors = (said["worst_error_1s_points"], said["worst_error_10s_points"]) if saturating else ("", "")
    answers = said.get("response_ms", {"p50": "", "p99": ""})
    parts = "/".join(f"{got:.1f}" for got in said["got_percent"])
    return (said["scenario"], parts, *errors, said["utilisation_percent"], answers["p50"], answers["p99"])


def main() -> None:
    """Measure all groups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each group is measured (20)")
    seconds = max(10.0, parser.parse_args().seconds)
    native, folder = build_native(), Path(tempfile.mkdtemp(prefix="gpupool-shares-"))
    found: list[dict[str, Any]] = []
    about = machine()
    try:
        for number, group in enumerate(GROUPS):
            found += [in_words(one) for one in measure(native, folder / str(number), group, seconds, warm_s=1.0)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    header = ("scenario", "got %", "1 s", "10 s", "busy %", "p50 ms", "p99 ms")
    print(table(header, [row(said) for said in found]))
    about["command"] = " ".join(["python", "benchmarks/native/shares.py", *sys.argv[1:]])
    write_result("shares", {"what": "shares", **about, "scenarios": found})


if __name__ == "__main__":
    main()
