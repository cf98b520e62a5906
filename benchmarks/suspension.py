"""Compare suspension with the other ways to take a GPU from a job: time until it is free, and lost work.

`python benchmarks/suspension.py [--rounds 8]`

A pool of one emulated GPU runs a job that keeps data in GPU memory and counts steps. In each round an urgent job of
0.5 s needs the GPU: the first job is suspended, asked to stop by a signal, or killed. Measured are the time from the
submission of the urgent job to its start, from its end to the next step of the other job, and the steps that are
computed again. The baseline is the kill. The simulated driver copies no memory: a real card adds the size of the memory
over the speed of its bus, twice. Prints a table and writes results/suspension.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _common import Pool, machine, percentile, table, until, write_result

STEPS = """
import ctypes, sys, time
cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
size = ctypes.c_size_t(1 << 20)
assert cuda.cuMemAlloc_v2(ctypes.byref(address), size) == 0
data = ctypes.create_string_buffer(1 << 20)
step = 0
while True:
    assert cuda.cuMemcpyDtoH_v2(data, address, size) == 0
    step += 1
    with open(sys.argv[1], "a") as file:
        file.write(f"{time.time()} {step}\\n")
    time.sleep(0.01)
"""
WAYS = ("suspend", "signal", "kill")
URGENT_S = 0.5
LIMIT_S = 60.0


def steps_in(file: Path) -> list[tuple[float, int]]:
    """Return time and number of each step."""
    lines = (line.split() for line in file.read_text().splitlines()) if file.exists() else ()
    return [(float(words[0]), int(words[1])) for words in lines if len(words) == 2]


def one_round(pool: Pool, way: str, number: int) -> dict[str, float]:
    """Return the seconds until the GPU is free and until the job continues, and the steps that it repeats."""
    api, file = pool.api(), pool.folder / f"{way}-{number}"
    env = {"PATH": "/usr/bin:/bin"}
    job = {"name": file.name, "command": [sys.executable, "-S", "-c", STEPS, str(file)], "workdir": "/", "env": env}
    made = api.ask("POST", "/v1/workloads", job | {"gpus": {"count": 1}, "on_preempt": way})
    until(lambda: len(steps_in(file)) > 100, LIMIT_S)
    begun = time.time()
    short = {"name": f"urgent-{way}-{number}", "command": ["sleep", str(URGENT_S)], "priority": "high", "workdir": "/"}
    urgent = api.ask("POST", "/v1/workloads", short | {"gpus": {"count": 1}, "env": env})["id"]

    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = api.ask("GET", f"/v1/workloads/{urgent}")
        return found if found["state"] == "succeeded" else None

    until(lambda: ended() is not None, LIMIT_S)
    found = ended()
    assert found is not None
    until(lambda: steps_in(file)[-1][0] > found["finished_at"], LIMIT_S)
    steps = steps_in(file)
    at, first = next((at, step) for at, step in steps if at > found["finished_at"])
    before = max(step for when, step in steps if when < at)
    api.ask("POST", f"/v1/workloads/{made['id']}/stop", {"grace_s": 0})
    until(lambda: api.ask("GET", f"/v1/workloads/{made['id']}")["state"] == "stopped", LIMIT_S)
    return {
        "free_s": found["started_at"] - begun,
        "continues_s": at - found["finished_at"],
        "repeated_steps": float(max(0, before - first + 1)),
    }


def main() -> None:
    """Measure all ways alternately, print the table and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with Pool("1xT4") as pool:
        pool.cli("policy", "set", "--min-runtime", "0s")
        for number in range(options.rounds):
            for way in WAYS:
                found[way].append(one_round(pool, way, number))
    keys = ("free_s", "continues_s", "repeated_steps")
    medians = {way: {key: percentile([one[key] for one in found[way]], 50) for key in keys} for way in WAYS}
    base = medians["kill"]
    rows = [
        (
            way,
            f"{medians[way]['free_s'] * 1000:.0f}",
            f"{medians[way]['free_s'] / base['free_s']:.2f}",
            f"{medians[way]['continues_s'] * 1000:.0f}",
            f"{medians[way]['continues_s'] / base['continues_s']:.2f}",
            f"{medians[way]['repeated_steps']:.0f}",
        )
        for way in WAYS
    ]
    print(table(("way (medians)", "GPU free, ms", "ratio", "job continues, ms", "ratio", "steps repeated"), rows))
    write_result("suspension", {"machine": machine(), "rounds": options.rounds, "medians": medians, "all": found})


if __name__ == "__main__":
    main()
