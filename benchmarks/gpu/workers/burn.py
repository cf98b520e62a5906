"""Kernels (or graphs of them) one after another for a window of time; reports the amount of work."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from _driver import WARM_UP_US, Gpu, driver, ok
from _worker import begin, parser, say

IN_FLIGHT_US = 4000.0
KERNELS_IN_GRAPH = 20


def main() -> None:
    """Calibrate, or burn."""
    made = parser(__doc__)
    made.add_argument("--calibrate", action="store_true")
    made.add_argument("--us", type=int, default=500)
    made.add_argument("--rounds-per-us", type=float, default=1000.0)
    made.add_argument("--graph", action="store_true")
    options = made.parse_args()
    gpu = Gpu()
    if options.calibrate:
        say(rounds_per_us=calibrated(gpu))
    rounds = max(1, round(options.us * options.rounds_per_us))
    launch, work_us = (_graph(gpu, rounds), options.us * KERNELS_IN_GRAPH) if options.graph else (None, options.us)
    batch = max(1, round(IN_FLIGHT_US / 2 / work_us))
    _run(gpu, rounds, launch, 1)
    until = begin(options)
    done, begun = 0, time.monotonic()
    marks: deque[Any] = deque()
    while time.monotonic() < until:
        marks.append(_run(gpu, rounds, launch, batch))
        if len(marks) > 2:  # two batches are under way: enough to keep the GPU busy, few enough to count well
            ok(driver.cuEventSynchronize(marks.popleft()))
            done += batch if time.monotonic() < until else 0
    seconds = time.monotonic() - begun
    gpu.finish()
    say(work=done * work_us / 1e6, launches=done, seconds=seconds)


def calibrated(gpu: Gpu) -> float:
    """Measure rounds per microsecond on an otherwise unused GPU."""
    rounds, least_ms = 1000, WARM_UP_US / 20_000
    while gpu.milliseconds(rounds, 1) < least_ms:
        rounds *= 2
    gpu.milliseconds(rounds, 20)  # let clocks come up
    taken = gpu.milliseconds(rounds, 20)
    return rounds * 20 / (taken * 1000)


def _graph(gpu: Gpu, rounds: int) -> Any:
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    ok(driver.cuStreamBeginCapture(gpu.stream, mode))
    for _ in range(KERNELS_IN_GRAPH):
        gpu.spin(rounds)
    return ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(gpu.stream)), 0))


def _run(gpu: Gpu, rounds: int, graph: Any, times: int) -> Any:
    for _ in range(times):
        if graph is None:
            gpu.spin(rounds)
        else:
            ok(driver.cuGraphLaunch(graph, gpu.stream))
    mark = ok(driver.cuEventCreate(2))  # without timing
    ok(driver.cuEventRecord(mark, gpu.stream))
    return mark


if __name__ == "__main__":
    main()
