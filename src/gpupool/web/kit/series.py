"""Charts of the pool over time: allocation, utilisation, queue, waiting time and free GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.telemetry import Series
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.usage import ALL_USAGE, GpuTime, GroupBy, UsageFilter, UsageLine
from gpupool.services.ports.usage import Moments
from gpupool.services.usage.analytics import AnalyticsService, Edges
from gpupool.web.kit.charts import Chart, ChartLine, downsample
from gpupool.web.kit.ranges import TimeRange

MAX_LINES = 7  # and one for all others
NOTHING_HELD = "No GPU was held in this period."


class GpuTimePart(StrEnum):
    """A part of the allocated GPU time."""

    HELD = "held"
    USED = "used"
    IDLE = "idle"

    def of(self, time: GpuTime) -> float | None:
        """Return the part in seconds; None if not measured."""
        return {GpuTimePart.HELD: time.allocated_s, GpuTimePart.USED: time.used_s, GpuTimePart.IDLE: time.idle_s}[self]


TITLES = {GpuTimePart.HELD: "GPUs held", GpuTimePart.USED: "GPUs computing", GpuTimePart.IDLE: "GPUs held and idle"}
UNNAMED_KEYS = {GroupBy.DEPARTMENT: "no department", GroupBy.MODEL: "unknown model"}


async def pool_gpus(
    analytics: AnalyticsService, span: TimeRange, scope: UsageFilter = ALL_USAGE, title: str = "GPUs"
) -> Chart:
    """Return the mean number of GPUs held and computing in each step."""
    edges = span.edges()
    lines = await analytics.usage(edges, GroupBy.POOL, span.cache_s, scope)
    held, used = (_means(edges, lines, what) for what in (GpuTimePart.HELD, GpuTimePart.USED))
    drawn = [ChartLine("held", [value or 0.0 for value in held]), ChartLine("computing", used)]
    if scope == ALL_USAGE:
        there = await analytics.capacity(edges, span.cache_s)
        ends = zip(edges, edges[1:], there, strict=False)
        drawn.append(
            ChartLine("in the pool", [step.present_s / (end - begin) for begin, end, step in ends], limit=True)
        )
    note = "" if lines else NOTHING_HELD
    return Chart(title, "GPUs", span, edges[:-1], drawn if lines else [], note=note)


async def gpus_by(
    analytics: AnalyticsService, span: TimeRange, by: GroupBy, what: GpuTimePart, scope: UsageFilter = ALL_USAGE
) -> Chart:
    """Return GPUs grouped by ``by`` as a stacked chart, the largest groups first and the rest as one line."""
    edges = span.edges()
    found = await analytics.usage(edges, by, span.cache_s, scope)
    groups: dict[str, list[UsageLine]] = defaultdict(list)
    for line in found:
        groups[line.key].append(line)
    totals = {key: sum(what.of(line.time) or 0.0 for line in lines) for key, lines in groups.items()}
    order = sorted((key for key in totals if totals[key] > 0), key=lambda key: (-totals[key], key))
    shown, others = (order, []) if len(order) <= MAX_LINES + 1 else (order[:MAX_LINES], order[MAX_LINES:])
    lines = [ChartLine(key or UNNAMED_KEYS.get(by, "none"), _filled(_means(edges, groups[key], what))) for key in shown]
    if others:
        rest = [line for key in others for line in groups[key]]
        lines.append(ChartLine(f"{len(others)} others", _filled(_means(edges, rest, what))))
    return Chart(f"{TITLES[what]} by {by}", "GPUs", span, edges[:-1], lines, stacked=True, note=NOTHING_HELD)


def _means(edges: Edges, lines: Sequence[UsageLine], what: GpuTimePart) -> list[float | None]:
    """Return the mean number of GPUs in each step; None if not measured."""
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
    """Return the number of workloads that waited for their first start."""
    times: list[float] = []
    waiting: list[float] = []
    for moments in _moments_to_end(span):
        times += moments.times()
        waiting += await analytics.waiting(moments, span.cache_s)
    line = ChartLine("queued workloads", waiting)
    return Chart("Queue length", "", span, times, [line], stepped=False, note="No workload waited in this period.")


def _moments_to_end(span: TimeRange) -> list[Moments]:
    """Return the moments of a range and its end, which can be most of an hour or a day after the last moment."""
    moments = span.moments()
    end = Moments(span.until, 1.0, 1)
    if moments.count < 1:
        return [end]
    return [moments, end] if span.until > moments.last else [moments]


async def waiting_time(analytics: AnalyticsService, span: TimeRange, scope: UsageFilter = ALL_USAGE) -> Chart:
    """Return the waiting time until the first start, by time of submission."""
    edges = span.edges()
    lines = {line.at: line for line in await analytics.waits(edges, span.cache_s, scope)}
    found = [lines.get(at) for at in edges[:-1]]
    drawn = [
        ChartLine("median", [None if line is None else line.p50_s for line in found]),
        ChartLine("90th percentile", [None if line is None else line.p90_s for line in found]),
    ]
    return Chart("Waiting time", "s", span, edges[:-1], drawn, note="No workload submitted in this period has started.")


async def free_gpus(analytics: AnalyticsService, span: TimeRange) -> Chart:
    """Return free GPUs: whole GPUs, and free parts of partly allocated GPUs."""
    times: list[float] = []
    pieces: list[float] = []
    whole: list[float] = []
    for moments in _moments_to_end(span):
        free = await analytics.free(moments, span.cache_s)
        times += moments.times()
        pieces += [permille / WHOLE_GPU for permille in free.pieces]
        whole += [permille / WHOLE_GPU for permille in free.whole]
    lines = [ChartLine("in pieces", pieces), ChartLine("whole", whole)]
    return Chart("Free GPUs", "GPUs", span, times, lines, stepped=False, stacked=True)


# What nodes measured


def measured_chart(series: Series, span: TimeRange, title: str, unit: str, columns: Sequence[tuple[str, str]]) -> Chart:
    """Return a chart of measured values; ``columns`` are pairs of sample field and label."""
    values = [series.values.get(name, ()) or (None,) * len(series.times) for name, _ in columns]
    times, thin = downsample(series.times, values)
    step_s = series.step_s * (-(-len(series.times) // max(1, len(times))))
    lines = [ChartLine(label, column) for (_, label), column in zip(columns, thin, strict=True)]
    known = [line for line in lines if any(value is not None for value in line.values)]
    return Chart(title, unit, span, times, known, stepped=False, step_s=step_s)


def with_limit(chart: Chart, limit: float) -> Chart:
    """Return the chart with a line for what was allocated, unless that is 0."""
    if not limit:
        return chart
    return replace(chart, lines=[*chart.lines, ChartLine("allocated", [limit] * len(chart.times), limit=True)])


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


def measured_chart_of(known: Known, what: str) -> Callable[[Series, TimeRange], Chart]:
    """Return the function that draws a metric; raise INVALID_REQUEST for an unknown one."""
    if what not in known:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"what: '{what[:40]}' is not measured.", f"Known: {', '.join(known)}."
        )
    title, unit, columns = known[what]
    return lambda series, span: measured_chart(series, span, title, unit, columns)
