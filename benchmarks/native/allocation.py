"""Cost of the share library for an allocation with its release: plain, and from a pool that keeps its memory.

`python benchmarks/native/allocation.py [--rounds 31]`: nanoseconds of `cuMemAlloc` with `cuMemFree`, and of
`cuMemAllocAsync` with `cuMemFreeAsync`, of 2 MiB on the simulated driver, directly and in a slice. Rounds alternate, so
that other load affects both equally. The simulated driver is faster than a real one for plain memory, so the difference
tells more than the ratio. Prints a table and writes results/allocation.json. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests/native"))

from lease_folder import LeasedGpu, LeaseFolder
from native_harness import FakeGpu, build_native, clean_environment, fake_gpus_folder

from _common import machine, spread, table, write_result

HERE = Path(__file__).parent
GOAL_RATIO = 1.1
KINDS = ("plain", "pool")
EACH = 2000


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Return nanoseconds by kind, directly and in a slice."""
    native, program = build_native(), folder / "allocation"
    subprocess.run(("cc", "-std=gnu11", "-O2", "-o", program, HERE / "allocation.c", "-ldl"), check=True)
    fake, gpu = native / "fake/libcuda.so.1", FakeGpu()
    bare = clean_environment() | {"GPUPOOL_FAKE_GPUS": str(fake_gpus_folder(folder / "gpus"))}
    # No arbiter releases what ended processes have left, so that the slice must hold the contexts of all rounds.
    leased = LeasedGpu(gpu.uuid_bytes, memory_limit_bytes=15 << 30, uuid_text=gpu.uuid)
    taken: dict[str, dict[str, list[float]]] = {kind: {"direct": [], "slice": []} for kind in KINDS}
    with LeaseFolder(folder / "lease", [leased], fake, native / "fake/libnvidia-ml.so.1") as lease:
        share = native / "share/libcuda.so.1"
        ways = {"direct": (fake, bare), "slice": (share, bare | lease.environment(share))}
        for _ in range(rounds):
            for way, (library, environment) in ways.items():
                command = (program, library, "2", str(EACH))
                text = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
                warm = text.splitlines()[-1].split()
                for kind, value in zip(KINDS, warm, strict=True):
                    taken[kind][way].append(float(value))
    return {kind: {way: spread(values) for way, values in ways.items()} for kind, ways in taken.items()}


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpupool-allocation-") as folder:
        found = measure(Path(folder), options.rounds)
    rows = []
    for kind, ways in found.items():
        direct, sliced = ways["direct"]["p50"], ways["slice"]["p50"]
        rows.append((kind, direct, sliced, f"{sliced - direct:.0f}", f"{sliced / direct:.2f}", GOAL_RATIO))
    print(table(("allocation with release, ns", "direct", "slice", "over direct", "ratio", "goal"), rows))
    result = {"what": "allocation", **machine(), "ns": found, "goals": {"ratio": GOAL_RATIO}}
    result["command"] = " ".join(["python", "benchmarks/native/allocation.py", *sys.argv[1:]])
    write_result("allocation", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
