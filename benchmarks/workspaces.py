"""The start of a stopped workspace compared with `gpupool run`, and a clone of large files, in one run.

`python benchmarks/workspaces.py [--rounds 20] [--clone-gib 10] [--folder DIR]` alternates `gpupool workspace start`
with `gpupool run` of the same size. Then it clones a workspace with the given amount of files. The clone is
copy-on-write only if DIR is on XFS or Btrfs; the table says whether it was. Prints a table and writes
results/workspaces.json. The GPUs are emulated.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from _common import Pool, machine, spread, table, until, write_result

START_GOAL_S, CLONE_GOAL_S = 1.5, 2.0
SIZE = ("-p", "0.25")
FILES = 16  # into which the amount is divided
LIMIT_S = 600.0


def timed(pool: Pool, *words: str) -> float:
    """Run a command; return its seconds."""
    begun = time.perf_counter()
    done = pool.cli(*words, timeout_s=LIMIT_S)
    if done.returncode != 0:
        raise RuntimeError(f"gpupool {' '.join(words)}: {done.stderr.strip()}")
    return time.perf_counter() - begun


def state(pool: Pool, name: str) -> str:
    """Return the state of a workspace."""
    return str(json.loads(pool.cli("workspace", "show", name, "--json").stdout)["state"])


def stop(pool: Pool, name: str) -> None:
    """Stop a workspace and wait until it is stopped."""
    timed(pool, "workspace", "stop", name)
    if not until(lambda: state(pool, name) == "stopped", LIMIT_S):
        raise RuntimeError(f"{name} does not stop")


def starts(pool: Pool, rounds: int) -> dict[str, Any]:
    """Start a workspace and run a program with the same size, in turn."""
    timed(pool, "workspace", "create", "lab", *SIZE)
    started, run = [], []
    for _ in range(rounds):
        started.append(timed(pool, "workspace", "start", "lab"))
        stop(pool, "lab")
        run.append(timed(pool, "run", *SIZE, "--", "true"))
    return {"workspace_s": spread(started), "run_s": spread(run)}


def clone(pool: Pool, gib: float, rounds: int) -> dict[str, Any]:
    """Clone a workspace with files of random bytes; a plain copy of them in the same folder is the comparison."""
    each_mib = int(gib * 1024 / FILES)
    write = f"for i in $(seq {FILES}); do head -c {each_mib}M /dev/urandom > file$i || exit 1; done; sync"
    timed(pool, "run", "--workspace", "lab", "-n", "0", "--", "sh", "-c", write)
    if not until(lambda: state(pool, "lab") == "stopped", LIMIT_S):
        raise RuntimeError("lab does not stop")
    cloned = []
    for number in range(rounds):
        cloned.append(timed(pool, "workspace", "clone", "lab", f"copy{number}"))
        timed(pool, "workspace", "delete", f"copy{number}", "--yes")
    probe = pool.state / "node" / "probe"
    probe.write_bytes(b"x" * 4096)
    done = subprocess.run(["cp", "--reflink=always", "--", str(probe), f"{probe}2"], capture_output=True, check=False)
    return {"gib": gib, "copy_on_write": done.returncode == 0, "clone_s": spread(cloned)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything in a pool of its own, with its state in the wanted folder."""
    pool = Pool("1xT4")
    folder = Path(tempfile.mkdtemp(prefix="gpw-", dir=options.folder)) if options.folder else None
    if folder is not None:
        pool.state = folder / "state"
        pool.run_dir = pool.state / "run"
        pool.env["GPUPOOL_STATE_DIR"] = str(pool.state)
    try:
        with pool:
            return {
                "emulated": True,
                "start": starts(pool, options.rounds),
                "clone": clone(pool, options.clone_gib, max(3, options.rounds // 4)),
            }
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    start, copied = result["start"], result["clone"]
    more = start["workspace_s"]["p50"] - start["run_s"]["p50"]
    kind = "copy on write" if copied["copy_on_write"] else "all data copied"
    rows = [
        ("start of a stopped workspace", f"{start['workspace_s']['p50']:.2f} s", ""),
        ("gpupool run -- true", f"{start['run_s']['p50']:.2f} s", ""),
        ("difference", f"{more:.2f} s", f"{START_GOAL_S:g} s"),
        (f"clone of {copied['gib']:g} GiB, {kind}", f"{copied['clone_s']['p50']:.2f} s", f"{CLONE_GOAL_S:g} s"),
    ]
    print(table(("medians; emulated GPU", "time", "goal"), rows))


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clone-gib", type=float, default=10.0)
    parser.add_argument("--folder", help="the folder for the pool's state, on the file system to measure")
    options = parser.parse_args()
    result = {"what": "workspaces", **machine(), **measure(options)}
    show(result)
    write_result("workspaces", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
