"""A long computation that survives preemption: it saves its state, ends, and continues when it is run again.

    gpupool submit sum -g 1 --notice-signal USR1 --grace 2m -- python3 examples/checkpoint.py --steps 100000

It adds up the squares of 1, 2, 3, ... where a training would take its steps. After the notice signal it finishes its
step, saves, and ends by itself. The pool then runs it again (``GPUPOOL_RESUME`` is set), and it continues from the
file. Nothing here needs gpupool: run by hand it does the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path


def notice() -> str:
    """Return reason and remaining time of the pool's notice; empty without one."""
    path = os.environ.get("GPUPOOL_NOTICE_FILE", "")
    if not path or not Path(path).exists():
        return ""
    told = json.loads(Path(path).read_text(encoding="utf-8"))
    left = told.get("deadline", time.time()) - time.time()
    return f"{told['reason']}: {told['message']} ({left:.0f} s left)"


def save(checkpoint: Path, state: dict[str, int]) -> None:
    """Save atomically: a kill during the write must leave the old checkpoint."""
    new = checkpoint.with_suffix(".new")
    new.write_text(json.dumps(state), encoding="utf-8")
    new.replace(checkpoint)


def main() -> int:
    """Take the remaining steps; return 0 when all are done, and 3 when it had to end earlier."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--step-time", type=float, default=0.01, metavar="SECONDS")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.json"), metavar="FILE")
    options = parser.parse_args()

    asked: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda signum, _frame: asked.append(signum))

    state = {"step": 0, "total": 0}
    if options.checkpoint.exists():
        state = json.loads(options.checkpoint.read_text(encoding="utf-8"))
        attempt = os.environ.get("GPUPOOL_ATTEMPT", "by hand")
        print(f"continuing after step {state['step']} (attempt {attempt})", flush=True)
    while state["step"] < options.steps:
        step = state["step"] + 1
        state = {"step": step, "total": state["total"] + step * step}
        time.sleep(options.step_time)
        if asked:
            save(options.checkpoint, state)
            print(f"saved after step {step}; {notice() or 'asked to end'}", flush=True)
            return 3
    save(options.checkpoint, state)
    print(f"total: {state['total']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
