"""Kill the pool's processes at random moments under mixed work; check that nothing is lost or duplicated.

`python benchmarks/chaos.py --kills 1000 --seed 1 [--minutes 30] [--burners 4] [--database postgres]`

A private pool of four emulated GPUs runs batch, lazy and suspended jobs, sweeps, leases with client commands, and
attached clients. The
control plane, the agent, the spawner, the arbiter, a shepherd, a client, the supervisor, or all of them get SIGKILL.
With `--burners N` each program has N busy loops, so the machine is overloaded; the result contains the load. Over
PostgreSQL there are two control planes, one of which leads; the server and the leader are killed and frozen, too, and
the server ends sessions. The exit status is 1 if anything was violated; the pool's folder is then kept. Prints a table
and writes results/chaos.json.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _chaos_check import Checks, at_rest, holders
from _chaos_kill import Killer, Watcher
from _chaos_mix import Mix
from _common import UNREADABLE, Pool, machine, percentile, table, until, write_result

EMULATED = "4xT4"
TARGET = 14  # workloads alive at a time
REST_S = 240.0


def made(database: str, seed: int, burners: int) -> tuple[Pool, Mix, Killer]:
    """Return a pool that is not started yet, its plan of work, and the process that kills its processes."""
    if database == "sqlite":
        pool = Pool(EMULATED)
        mix = Mix(pool, seed, TARGET, burners)
        return pool, mix, Killer(pool, mix, seed)
    from _chaos_database import DatabaseKiller, PairPool

    pair = PairPool(EMULATED)
    mix = Mix(pair, seed, TARGET, burners)
    return pair, mix, DatabaseKiller(pair, mix, seed)


def torment(options: argparse.Namespace) -> dict[str, Any]:
    """Run the chaos test once."""
    pool, mix, killer = made(options.database, options.seed, options.burners)
    pool.up()
    watcher, begun, loads = Watcher(pool), time.monotonic(), []
    mix.start()
    watcher.start()
    try:
        strike_often(killer, options.kills, begun + options.minutes * 60, options.pause, options.seed, loads)
        killer.rest()
        under_fire_s = time.monotonic() - begun
        pool.up()  # a supervisor that died last is raised again
    finally:
        mix.stop(REST_S)
    rested = until(lambda: rests(pool), REST_S, 0.5)
    watcher.finish()
    checks = Checks(pool, mix, killer)
    violations = checks.all()
    violations["programs outlived their end"] = watcher.violations
    violations["errors of the mix"] = mix.errors
    violations["did not come to rest"] = [] if rested else [f"after {REST_S:.0f} s"]
    result = report(mix, killer, checks)
    pool.down()
    violations["left on the machine"] += holders(pool.folder)
    return (
        result
        | judged(pool, violations)
        | {
            "seconds_under_fire": round(under_fire_s, 1),
            "looks_at_proc": watcher.looks,
            "load_p50": round(percentile(loads, 50), 1),
            "load_max": round(max(loads), 1),
        }
    )


def strike_often(killer: Killer, kills: int, deadline: float, pause_s: float, seed: int, loads: list[float]) -> None:
    """Kill at random moments, until ``kills`` or the time is reached; append the load at each kill to ``loads``."""
    chance, told = random.Random(seed ^ 0xA11), 0
    while killer.kills.total < kills and time.monotonic() < deadline:
        time.sleep(chance.expovariate(1 / pause_s))
        killer.strike()
        loads.append(os.getloadavg()[0])
        if killer.kills.total >= told + 100:
            told = killer.kills.total
            print(f"{told} kills", file=sys.stderr, flush=True)


def rests(pool: Pool) -> bool:
    """Return whether nothing runs any more, if the database can be read."""
    try:
        return at_rest(pool)
    except UNREADABLE:
        return False


def judged(pool: Pool, violations: dict[str, list[str]]) -> dict[str, Any]:
    """Return the violations as JSON; remove a folder without violations."""
    if not any(violations.values()):
        pool.remove()
    else:
        print(f"kept for a look: {pool.folder}", file=sys.stderr)
    return {
        "violations": {name: len(found) for name, found in violations.items()},
        "violation_details": {name: found[:50] for name, found in violations.items() if found},
    }


def report(mix: Mix, killer: Killer, checks: Checks) -> dict[str, Any]:
    """Return the result as JSON."""
    kinds: dict[str, int] = {}
    for planned in mix.planned.values():
        kinds[planned.kind] = kinds.get(planned.kind, 0) + 1
    outages = killer.kills.outages_s
    return {
        "kills": killer.kills.total,
        "kills_by_kind": dict(killer.kills.by_kind.most_common()),
        "workloads": kinds,
        "replicas": len(checks.runs),
        "attempts": sum(run.attempt for run in checks.runs),
        "gpus_returned": checks.gpus_returned,
        "suspensions": checks.suspensions,
        "clients_left_behind": sum(planned.left_behind for planned in mix.planned.values()),
        "seconds_from_a_supervisors_death_to_a_pool_that_answers_p50": round(percentile(outages, 50), 2)
        if outages
        else None,
    }


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    print(
        table(
            ("killed with -9, or as it says", "times"),
            [*result["kills_by_kind"].items(), ("together", result["kills"])],
        )
    )
    print()
    ran = [*result["workloads"].items(), ("replicas", result["replicas"]), ("attempts", result["attempts"])]
    ran.append(("returns of GPUs by lazy jobs", result["gpus_returned"]))
    ran.append(("suspensions", result["suspensions"]))
    print(table(("mix", "number"), ran))
    print()
    print(table(("violation", "found", "goal"), [(name, n, 0) for name, n in result["violations"].items()]))
    for name, found in result["violation_details"].items():
        print(f"\n{name}:", *found, sep="\n  ")


def main() -> int:
    """Run the test, print and store the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30.0, help="kill no longer than this")
    parser.add_argument("--pause", type=float, default=0.7, metavar="S", help="mean time between two blows")
    parser.add_argument("--burners", type=int, default=0, metavar="N", help="busy loops in each program of the mix")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--name", default="chaos", help="of the result's file; empty: none is written")
    options = parser.parse_args()
    result = {"what": "chaos", **machine(), "seed": options.seed}
    result |= torment(options)
    show(result)
    if options.name:
        write_result(options.name, result)
    return 1 if any(result["violations"].values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
