"""Nanoseconds of this thread's processor time for the launch of an empty kernel, the least of several rounds."""

from __future__ import annotations

import time

from _driver import Gpu
from _worker import parser, say

LAUNCHES = 500
ROUNDS = 200


def main() -> None:
    """Short rounds, so that the queue never fills and nobody waits."""
    options = parser(__doc__).parse_args()
    assert options.seconds > 0
    gpu = Gpu()
    gpu.empty()
    gpu.finish()
    taken = []
    for _ in range(ROUNDS):
        begun = time.thread_time_ns()
        for _ in range(LAUNCHES):
            gpu.empty()
        taken.append(time.thread_time_ns() - begun)
        gpu.finish()
    say(ns=min(taken) / LAUNCHES, rounds=ROUNDS)


if __name__ == "__main__":
    main()
