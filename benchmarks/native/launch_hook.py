"""Cost of the share library for a launch, and for a program that never uses a GPU.

`python benchmarks/native/launch_hook.py [--rounds 31]`: nanoseconds and instructions of a launch of an empty kernel on
a driver that does nothing, directly and through the hook (without a lease, ungated, and gated with the grant held);
instructions and milliseconds of `true` with and without the library preloaded. Rounds alternate, so that other
load affects all equally. Instructions are counted by single steps. Prints a table and writes
results/launch_hook.json. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from _common import machine, spread, table, write_result

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COUNTER = ROOT / "tests/native/programs/count_instructions.c"
LIBRARIES = ("share/libcuda.so.1", "share/libnvidia-ml.so.1")
TRUE = shutil.which("true") or "/bin/true"
GOAL_HOOK_NS = 100.0
GOAL_LOAD_MS = 1.0
LAUNCHES = 200_000
COUNTED = 1000
STREAM = "0x100000"
PAGE = 4096
MAGIC, ABI = 0x316567617070756E, 1
POLICY_NONE, POLICY_GUARANTEE, GRANTED = 0, 1, 1 << 2 | 1


@dataclass(frozen=True, slots=True)
class Way:
    """One way to launch."""

    name: str
    library: str
    environment: dict[str, str]
    stream: str = "0"
    threads: int = 1

    def command(self, program: Path, rounds: int, launches: int) -> tuple[str, ...]:
        """Return the program that launches."""
        return (str(program), self.library, self.stream, str(self.threads), str(rounds), str(launches))


def build(folder: Path) -> None:
    """Build the libraries, the empty driver and the programs; raise ``subprocess.CalledProcessError``."""
    subprocess.run((sys.executable, ROOT / "native/build.py", folder, *LIBRARIES), check=True)
    compiler = ("cc", "-std=gnu11", "-O2", f"-I{ROOT / 'native/include'}", f"-I{folder}")
    shared = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1")
    subprocess.run((*compiler, *shared, "-o", folder / "null-libcuda.so.1", HERE / "null_driver.c"), check=True)
    subprocess.run((*compiler, "-o", folder / "launch_hook", HERE / "launch_hook.c", "-ldl", "-lpthread"), check=True)
    subprocess.run((*compiler, "-o", folder / "count", COUNTER), check=True)


def lease(folder: Path, driver: Path, policy: int, grant: int) -> dict[str, str]:
    """Create a lease folder like the agent and the arbiter; return the variable that names it."""
    folder.mkdir()
    header = struct.pack("<QII128s1024s", MAGIC, ABI, 1, b"benchmark", str(driver).encode()).ljust(PAGE, b"\0")
    gpu = bytearray(PAGE)
    struct.pack_into("<16s96sQQIII", gpu, 0, bytes([7] * 16), b"GPU-benchmark", 1 << 30, 0, 500, policy, 0)
    struct.pack_into("<I", gpu, 256, grant)
    (folder / "control").write_bytes(header + bytes(gpu))
    (folder / "status").write_bytes(struct.pack("<QII", MAGIC, ABI, 1).ljust(2 * PAGE + 128 * 256, b"\0"))
    return {"GPUPOOL_LEASE_DIR": str(folder)}


def ways(folder: Path) -> list[Way]:
    """Return the scenarios, the direct one first."""
    driver = folder / "null-libcuda.so.1"
    preload = {"LD_PRELOAD": str(folder / LIBRARIES[0])}
    none = preload | lease(folder / "none", driver, POLICY_NONE, 0)
    held = preload | lease(folder / "held", driver, POLICY_GUARANTEE, GRANTED)
    soname = "libcuda.so.1"
    return [
        Way("direct", str(driver), {}),
        Way("no lease", soname, preload | {"GPUPOOL_CUDA_DRIVER": str(driver)}),
        Way("policy none", soname, none),
        Way("grant held, default stream", soname, held),
        Way("grant held, own stream", soname, held, STREAM),
        Way("direct, two threads", str(driver), {}, STREAM, 2),
        Way("grant held, two threads", soname, held, STREAM, 2),
    ]


def said(command: tuple[str, ...], environment: dict[str, str]) -> str:
    """Return the output of a program; raise ``subprocess.CalledProcessError``."""
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True).stdout


def counted(folder: Path, command: tuple[str, ...], environment: dict[str, str]) -> int:
    """Count the instructions of a program's first thread."""
    rest = {name: value for name, value in environment.items() if name != "LD_PRELOAD"}
    preload = {"COUNTED_PRELOAD": environment["LD_PRELOAD"]} if "LD_PRELOAD" in environment else {}
    return int(said((str(folder / "count"), *command), rest | preload).split()[-1])


def per_launch(folder: Path, way: Way) -> float:
    """Count the instructions of one launch: a long run minus a short one."""
    program = folder / "launch_hook"
    short, long = (
        counted(folder, way.command(program, 1, launches), way.environment) for launches in (COUNTED, 2 * COUNTED)
    )
    return (long - short) / COUNTED


def times(folder: Path, all_ways: list[Way], rounds: int) -> dict[str, list[float]]:
    """Measure the nanoseconds of a launch, alternating."""
    found: dict[str, list[float]] = {way.name: [] for way in all_ways}
    for _ in range(rounds):
        for way in all_ways:
            lines = said(way.command(folder / "launch_hook", 2, LAUNCHES), way.environment).split()
            found[way.name].append(float(lines[1]))  # the first round warms up
    return found


def preloaded(folder: Path, runs: int) -> dict[str, Any]:
    """Measure `true` without and with the preloaded libraries."""
    preload = {"LD_PRELOAD": ":".join(str(folder / name) for name in LIBRARIES)}
    taken: dict[str, list[float]] = {"true": [], "true, preloaded": []}
    for _ in range(runs):
        for name, environment in (("true", {}), ("true, preloaded", preload)):
            begun = time.perf_counter()
            subprocess.run((TRUE,), env=os.environ | environment, check=True)
            taken[name].append(time.perf_counter() - begun)
    return {
        name: {
            "instructions": counted(folder, (TRUE,), {} if name == "true" else preload),
            "ms": spread(seconds, 1000, 3),
        }
        for name, seconds in taken.items()
    }


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Run all measurements."""
    build(folder)
    all_ways = ways(folder)
    taken = times(folder, all_ways, rounds)
    launches = {
        way.name: {"ns": spread(taken[way.name])}
        | ({} if way.threads > 1 else {"instructions": round(per_launch(folder, way), 1)})
        for way in all_ways
    }
    return {"launches": launches, "preloaded": preloaded(folder, 10 * rounds)}


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    rows = []
    for name, found in result["launches"].items():
        base = result["launches"]["direct, two threads" if "two" in name else "direct"]
        over = found["ns"]["p50"] - base["ns"]["p50"]
        goal = f"{GOAL_HOOK_NS:g}" if name.startswith("grant") else ""
        rows.append((name, found["ns"]["p50"], found["ns"]["p99"], f"{over:.1f}", goal, found.get("instructions", "")))
    print(table(("one launch, ns", "p50", "p99", "over direct", "goal", "instructions"), rows))
    bare, with_it = result["preloaded"]["true"], result["preloaded"]["true, preloaded"]
    more = with_it["instructions"] - bare["instructions"], with_it["ms"]["p50"] - bare["ms"]["p50"]
    print(f"true: {bare['instructions']} instructions, {bare['ms']['p50']} ms (p50)")
    print(f"both libraries preloaded: {more[0]} instructions, {more[1]:.3f} ms more; goal {GOAL_LOAD_MS:g} ms")


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpupool-launch-hook-") as folder:
        found = measure(Path(folder), options.rounds)
    result = {"what": "launch_hook", **machine(), **found}
    result["command"] = " ".join(["python", "benchmarks/native/launch_hook.py", *sys.argv[1:]])
    result["goals"] = {"hook_ns": GOAL_HOOK_NS, "load_ms": GOAL_LOAD_MS}
    show(result)
    write_result("launch_hook", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
