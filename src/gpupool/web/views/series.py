"""Figures of the pool over time as charts: what was held and used, who waited, what was left over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.telemetry import Series
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.usage import EVERYTHING, By, GpuTime, Scope, UsageLine
from gpupool.services.analytics import AnalyticsService, Edges
from gpupool.web.ranges import TimeRange
from gpupool.web.views.charts import Chart, Line, thinned

MOST_LINES = 7  # and one for all others
NOTHING_HELD = "No GPU was held in this time."


class What(StrEnum):
    """Which part of the GPU time that was held."""

    HELD = "held"
    USED = "used"
    IDLE = "idle"

    def of(self, time: GpuTime) -> float | None:
        """That part, in seconds; None where nothing was measured."""
        return {What.HELD: time.allocated_s, What.USED: time.used_s, What.IDLE: time.idle_s}[self]


TITLES = {What.HELD: "GPUs held", What.USED: "GPUs computing", What.IDLE: "GPUs held and idle"}
NO_NAME = {By.DEPARTMENT: "in no department", By.MODEL: "model not known"}


async def pool_gpus(
    analytics: AnalyticsService, span: TimeRange, scope: Scope = EVERYTHING, title: str = "GPUs"
) -> Chart:
    """How many GPUs were held and how many computed, on the mean of each step."""
    edges = span.edges()
    lines = await analytics.usage(edges, By.POOL, span.lasts_s, scope)
    held, used = (_means(edges, lines, what) for what in (What.HELD, What.USED))
    drawn = [Line("held", [value or 0.0 for value in held]), Line("computing", used)]
    if scope == EVERYTHING:
        there = analytics.capacity_permille() / WHOLE_GPU
        drawn.append(Line("in the pool now", [there] * (len(edges) - 1), limit=True))
    note = "" if lines else NOTHING_HELD
    return Chart(title, "GPUs", span, edges[:-1], drawn if lines else [], note=note)


async def gpus_by(analytics: AnalyticsService, span: TimeRange, by: By, what: What, scope: Scope = EVERYTHING) -> Chart:
    """The same told apart, the largest first and the rest together, on top of each other."""
    edges = span.edges()
    found = await analytics.usage(edges, by, span.lasts_s, scope)
    groups: dict[str, list[UsageLine]] = defaultdict(list)
    for line in found:
        groups[line.key].append(line)
    totals = {key: sum(what.of(line.time) or 0.0 for line in lines) for key, lines in groups.items()}
    order = sorted((key for key in totals if totals[key] > 0), key=lambda key: (-totals[key], key))
    shown, others = (order, []) if len(order) <= MOST_LINES + 1 else (order[:MOST_LINES], order[MOST_LINES:])
    lines = [Line(key or NO_NAME.get(by, "none"), _filled(_means(edges, groups[key], what))) for key in shown]
    if others:
        rest = [line for key in others for line in groups[key]]
        lines.append(Line(f"{len(others)} others", _filled(_means(edges, rest, what))))
    return Chart(f"{TITLES[what]} by {by}", "GPUs", span, edges[:-1], lines, stacked=True, note=NOTHING_HELD)


def _means(edges: Edges, lines: Sequence[UsageLine], what: What) -> list[float | None]:
    """GPUs on the mean of each step; None where nobody looked."""
    sums: dict[float, float | None] = {}
    for line in lines:
        part = what.of(line.time)
        if part is not None:
            sums[line.at] = (sums.get(line.at) or 0.0) + part
    return [
        None if (total := sums.get(at)) is None else total / (edges[number + 1] - at)
        for number, at in enumerate(edges[:-1])
    ]


def _filled(values: list[float | None]) -> list[float | None]:
    return [0.0 if value is None else value for value in values]


async def queue_length(analytics: AnalyticsService, span: TimeRange) -> Chart:
    """How many workloads waited for their first start."""
    moments = span.moments()
    waiting = await analytics.waiting(moments, span.lasts_s) if moments.count > 0 else ()
    line = Line("workloads that had not started", [float(count) for count in waiting])
    return Chart("Queue length", "", span, moments.times(), [line], stepped=False, note="Nobody waited in this time.")


async def waiting_time(analytics: AnalyticsService, span: TimeRange, scope: Scope = EVERYTHING) -> Chart:
    """How long work submitted in each step waited for its first start."""
    edges = span.edges()
    lines = {line.at: line for line in await analytics.waits(edges, span.lasts_s, scope)}
    found = [lines.get(at) for at in edges[:-1]]
    drawn = [
        Line("half waited at most", [None if line is None else line.p50_s for line in found]),
        Line("nine of ten at most", [None if line is None else line.p90_s for line in found]),
    ]
    return Chart(
        "Waiting time", "s", span, edges[:-1], drawn, note="Nothing that was submitted in this time has started."
    )


async def free_gpus(analytics: AnalyticsService, span: TimeRange) -> Chart:
    """What was free, on whole GPUs and beside others on GPUs partly held."""
    moments = span.moments()
    if moments.count < 1:
        return Chart("Free GPUs", "GPUs", span, (), ())
    free = await analytics.free(moments, span.lasts_s)
    lines = [
        Line("in pieces", [permille / WHOLE_GPU for permille in free.pieces]),
        Line("whole", [permille / WHOLE_GPU for permille in free.whole]),
    ]
    return Chart("Free GPUs", "GPUs", span, moments.times(), lines, stepped=False, stacked=True)


# What nodes measured


def measured(series: Series, span: TimeRange, title: str, unit: str, columns: Sequence[tuple[str, str]]) -> Chart:
    """Columns of measured values by their names there and here; as many points as a chart takes."""
    values = [series.values.get(name, ()) or (None,) * len(series.times) for name, _ in columns]
    times, thin = thinned(series.times, values)
    step_s = series.step_s * (-(-len(series.times) // max(1, len(times))))
    lines = [Line(label, column) for (_, label), column in zip(columns, thin, strict=True)]
    known = [line for line in lines if any(value is not None for value in line.values)]
    return Chart(title, unit, span, times, known, stepped=False, step_s=step_s)


GPU = {
    "use": ("GPU use", "%", (("utilisation_percent", "computing"),)),
    "memory": ("GPU memory", "MiB", (("memory_used_mib", "used"),)),
    "power": ("Power", "W", (("power_w", "drawn"),)),
    "temperature": ("Temperature", "°C", (("temperature_c", "GPU"),)),
    "clock": ("Clock", "MHz", (("sm_clock_mhz", "processors"),)),
}
NODE = {
    "cpu": ("Processors", "%", (("cpu_percent", "busy (100 % is one core)"),)),
    "memory": ("Host memory", "MiB", (("memory_used_mib", "used"),)),
}
WORKLOAD = {
    "gpu": ("GPU use", "%", (("gpu_percent", "computing (100 % is one GPU)"),)),
    "gpu_memory": ("GPU memory", "MiB", (("gpu_memory_mib", "used"),)),
    "cpu": ("Processors", "%", (("cpu_percent", "busy (100 % is one core)"),)),
    "memory": ("Host memory", "MiB", (("memory_mib", "used"),)),
    "io": ("Reading and writing", "B/s", (("read_bytes_per_s", "read"), ("written_bytes_per_s", "written"))),
}

Known = Mapping[str, tuple[str, str, tuple[tuple[str, str], ...]]]


def chosen(known: Known, what: str) -> Callable[[Series, TimeRange], Chart]:
    """How a measured value is drawn; raises INVALID_REQUEST for one that is not measured."""
    if what not in known:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"what: '{what[:40]}' is not measured.", f"Known: {', '.join(known)}."
        )
    title, unit, columns = known[what]
    return lambda series, span: measured(series, span, title, unit, columns)
