"""Measure how fast `ps` and `stop` answer, and how long a start takes, on an overloaded machine.

`python benchmarks/busy.py [--hogs 40] [--rounds 10]`: busy loops run inside a job of the pool, then outside of it at
normal niceness, each in its own session. Prints a table and writes results/busy.json. Best run as root on an otherwise
idle machine; the result contains the load before the run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _common import Pool, machine, spread, table, until, write_result

GOAL_S = 2.0
LOOP = "while True: pass"
WAITS = "import time; time.sleep(3600)"
MANY = f"import subprocess, sys; [subprocess.Popen([sys.executable, '-c', '{LOOP}']) for _ in range(int(sys.argv[1]))]"


@contextmanager
def inside(pool: Pool, hogs: int) -> Iterator[None]:
    """Run busy loops in a job of the pool."""
    pool.cli("submit", "hogs", "-g", "0.1", "--", sys.executable, "-c", f"{MANY}; {WAITS}", str(hogs))
    until(lambda: "running" in pool.cli("ps").stdout, 60)
    time.sleep(3)
    try:
        yield
    finally:
        pool.cli("stop", "hogs", "--force")
        until(lambda: "hogs" not in pool.cli("ps").stdout, 60)


@contextmanager
def outside(_pool: Pool, hogs: int) -> Iterator[None]:
    """Run busy loops outside the pool."""
    loops = [subprocess.Popen([sys.executable, "-c", LOOP], start_new_session=True) for _ in range(hogs)]
    time.sleep(3)
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def nothing(_pool: Pool, _hogs: int) -> Iterator[None]:
    """Add no load."""
    yield


def timed(pool: Pool, *words: str) -> float:
    """Return the seconds that a command takes; raise ``RuntimeError`` if it fails."""
    begun = time.perf_counter()
    done = pool.cli(*words, timeout_s=300)
    taken = time.perf_counter() - begun
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr}")
    return taken


def measure(hogs: int, rounds: int, restarts: int) -> dict[str, Any]:
    """Measure the time of each command under each kind of load."""
    found: dict[str, Any] = {}
    with Pool("2xT4") as pool:
        for load in (nothing, inside, outside):
            times: dict[str, list[float]] = {"ps": [], "stop": [], "down and up": []}
            with load(pool, hogs):
                for number in range(rounds):
                    name = f"{load.__name__}{number}"
                    pool.cli("submit", name, "-g", "0.1", "--", "sleep", "600")
                    times["ps"].append(timed(pool, "ps"))
                    times["stop"].append(timed(pool, "stop", name, "--force"))
                for _ in range(restarts):
                    times["down and up"].append(timed(pool, "down") + timed(pool, "up", "--background"))
            found[load.__name__] = {name: spread(values) for name, values in times.items()}
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hogs", type=int, default=20 * (os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--restarts", type=int, default=3)
    options = parser.parse_args()
    about = machine()
    found = measure(options.hogs, options.rounds, options.restarts)
    lines = [
        (
            load,
            command,
            *(f"{times[key]:.2f}" for key in ("p50", "p99", "max")),
            f"{GOAL_S:.1f}" if "down" not in command else "",
        )
        for load, commands in found.items()
        for command, times in commands.items()
    ]
    print(table(("busy loops", "command", "p50 s", "p99 s", "max s", "goal s"), lines))
    write_result("busy", {"machine": about, "hogs": options.hogs, "goal_s": GOAL_S, "seconds": found})


if __name__ == "__main__":
    main()
