"""Inject faults in and between machines; check for work that runs twice, GPUs leased twice, and lost jobs.

    sudo python benchmarks/cluster/fault_matrix.py [--only TEXT ...] [--runs 3] [--list]

Two heads, a node and PostgreSQL, each on a machine of its own: a network namespace, with folders and processes of its
own, linked over TCP. Each machine runs a batch job that writes ten times a second to one file which all share. A case
cuts a link (both ways, or one way alone), kills, freezes, slows, or fills a disk, with the shortest times that tests
use; then everything is healed. With `--clock` (libfaketime) the clocks of a head and of the node are wrong: by
hours, and by a hundredth of each second. Prints a table and writes results/cluster_fault_matrix.json.

`overlap`: for how many seconds two attempts of one job ran at the same time; below zero: the shortest pause between
two. `silence`: the longest time in which a job did not run. `recovery`: from healing until a leader has all machines
and all jobs run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from math import inf, isfinite
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "e2e"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "node"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "store"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "ray"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "machines"))

from fault_cases import CASES, Case, Found, play
from spaces import FAKETIME, spaces

from _common import machine, table, write_result

CLOCKS = {"": {}, "wrong": {"h1": "+2h x1.01", "n1": "-3h x0.99"}}
HEADER = ("case", "clocks", "run", "overlap s", "double leases", "lost jobs", "attempts", "silence s", "recovery s", "")


def rounds(cases: list[Case], clocks: str, number: int) -> Iterator[Found]:
    """Run cases; use new machines after a failed one."""
    waiting = list(cases)
    while waiting:
        try:
            with spaces(CLOCKS[clocks]) as made:
                while waiting:
                    case = waiting.pop(0)
                    try:
                        found = play(made, case, number * len(CASES) + list(CASES).index(case.name))
                    except Exception as error:  # noqa: BLE001 - every failure is a result
                        yield Found(case.name, inf, "", (repr(error)[:300],), None, inf, 0)
                        break
                    yield found
                    if not found.ok:
                        break
        except Exception as error:  # noqa: BLE001 - likewise: machines that do not come up or go
            print(f"machines: {error!r}"[:300], file=sys.stderr)


def row(found: Found, clocks: str, number: int) -> tuple[object, ...]:
    """Return one line of the table."""
    overlap = "-" if found.overlap_s == -inf else round(found.overlap_s, 1)
    numbers = (overlap, found.double_leases or 0, len(found.lost_jobs), found.attempts, found.silence_s)
    return (found.case, clocks or "right", number + 1, *numbers, found.recovery_s, "ok" if found.ok else "FAILED")


def in_json(found: Found) -> dict[str, object]:
    """Return what is kept of a case; a number that is not finite (there was no second attempt) as null."""
    values = {
        name: value if not isinstance(value, float) or isfinite(value) else None
        for name, value in asdict(found).items()
    }
    return {**values, "ok": found.ok}


def main() -> int:
    """Run all cases; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names have one of these texts")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="", help="'wrong': clocks of two machines are wrong")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and end")
    options = parser.parse_args()
    cases = [c for c in CASES.values() if not options.only or any(text in c.name for text in options.only)]
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    if options.clock and not FAKETIME.exists():
        print(f"--clock needs libfaketime ({FAKETIME})", file=sys.stderr)
        return 2
    all_found = []
    lines: list[tuple[object, ...]] = []
    for number in range(options.runs):
        for found in rounds(cases, options.clock, number):
            all_found.append({"run": number + 1, "clocks": options.clock or "right", **in_json(found)})
            lines.append(row(found, options.clock, number))
            print(*lines[-1], sep="  ", flush=True)
            if found.lost_jobs:
                print("   ", *found.lost_jobs, flush=True)
    print(table(HEADER, lines))
    print(f"{sum(line[-1] == 'ok' for line in lines)} of {len(lines)} ok")
    name = f"cluster_fault_matrix_clocks_{options.clock}" if options.clock else "cluster_fault_matrix"
    write_result(name, {"machine": machine(), "cases": all_found})
    return 0 if all(line[-1] == "ok" for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())
