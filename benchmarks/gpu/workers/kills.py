"""A process of the slice takes memory and launches kernels, is killed with -9, and its memory must come back; again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

from _driver import Gpu, driver, ok
from _worker import parser, say

LONGEST_S = 30.0
PART = 3  # a victim takes a third of what is free


def main() -> None:
    """Run the surviving process, or with ``--victim`` the process that is killed."""
    made = parser(__doc__)
    made.add_argument("--times", type=int, default=10)
    made.add_argument("--victim", type=float)
    options = made.parse_args()
    gpu = Gpu()
    if options.victim is not None:
        _suffer(gpu, options.victim)
    before = gpu.settled_memory_mib()[0]
    back = [_once(gpu, before) for _ in range(options.times)]
    say(back_ms=back, lost_mib=before - gpu.settled_memory_mib()[0])


def _suffer(gpu: Gpu, mib: float) -> None:
    """Take memory, say so, and go on taking, giving back and launching for ever."""
    ok(driver.cuMemAlloc(int(mib * 2**20)))
    print("taken", flush=True)
    while True:
        piece = ok(driver.cuMemAlloc(2 << 20))
        gpu.spin(10_000)
        ok(driver.cuMemFree(piece))


def _once(gpu: Gpu, before: float) -> float:
    """Measure the milliseconds from a kill until the same memory is free."""
    arguments = (sys.executable, __file__, "--victim", str(before / PART))
    victim = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    if not victim.stdout.readline():
        sys.exit("the victim died of something else")
    time.sleep(random.uniform(0, 0.05))
    os.kill(victim.pid, signal.SIGKILL)
    begun = time.monotonic()
    victim.wait()
    while gpu.memory_mib()[0] < before - 1:
        if time.monotonic() - begun > LONGEST_S:
            sys.exit(f"after {LONGEST_S:g} s {before - gpu.memory_mib()[0]:.0f} MiB were still missing")
        time.sleep(0.002)
    return (time.monotonic() - begun) * 1000


if __name__ == "__main__":
    main()
