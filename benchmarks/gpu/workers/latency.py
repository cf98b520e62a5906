"""Launch one short kernel after a pause, again and again; reports the time from each launch to its end."""

from __future__ import annotations

import time

from _driver import Gpu
from _worker import begin, parser, say

KERNEL_US = 50
PAUSE_S = 0.02


def main() -> None:
    """Wait for the others, launch and wait until the window has ended."""
    made = parser(__doc__)
    made.add_argument("--rounds-per-us", type=float, default=1000.0)
    options = made.parse_args()
    gpu = Gpu()
    rounds = max(1, round(KERNEL_US * options.rounds_per_us))
    gpu.spin(rounds)
    gpu.finish()
    until, taken = begin(options), []
    while time.monotonic() < until:
        time.sleep(PAUSE_S)
        begun = time.monotonic()
        gpu.spin(rounds)
        gpu.finish()
        taken.append((time.monotonic() - begun) * 1000)
    taken.sort()
    say(median_ms=taken[len(taken) // 2], p99_ms=taken[len(taken) * 99 // 100], most_ms=taken[-1], samples=len(taken))


if __name__ == "__main__":
    main()
