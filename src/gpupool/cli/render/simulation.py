"""What a simulation showed, as people see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpupool.cli.render.text import Style, pairs, table
from gpupool.domain.units import format_duration

Json = dict[str, Any]


def simulation_lines(shown: Json, style: Style) -> list[str]:
    """The figures of a run, its projects, and why some jobs could never start."""
    lines = pairs(_figures(shown), style)
    headers = ("PROJECT", "JOBS", "FINISHED", "GPU HOURS", "WAIT MEAN", "P50", "P99", "LONGEST", "PREEMPTED", "WASTED")
    rows = [_project(name, found) for name, found in shown["projects"].items()]
    lines += ["", *table(headers, rows, style)]
    return lines + ([""] + [f"Impossible: {reason}" for reason in shown["reasons"]] if shown["reasons"] else [])


def comparison_lines(now: Json, changed: Json, style: Style) -> list[str]:
    """The figures of two runs of the same work side by side, then their projects."""
    rows = [(what, tell(now), tell(changed)) for what, tell in _COMPARED]
    lines = table(("", "AS IT IS", "CHANGED"), rows, style)
    headers = (
        "PROJECT",
        "JOBS",
        "GPU HOURS",
        "CHANGED",
        "WAIT MEAN",
        "CHANGED",
        "P90",
        "CHANGED",
        "EVICTED",
        "CHANGED",
    )
    names = sorted({*now["projects"], *changed["projects"]})
    lines += ["", *table(headers, [_both(name, now["projects"], changed["projects"]) for name in names], style)]
    reasons = [f"Impossible: {reason}" for reason in changed["reasons"]]
    return lines + (["", *reasons] if reasons else [])


def _waited(which: str) -> Callable[[Json], str]:
    return lambda shown: format_duration(shown["wait_s"][which])


_COMPARED: tuple[tuple[str, Callable[[Json], object]], ...] = (
    ("GPUs", lambda shown: f"{shown['gpus']:,}"),
    ("Jobs finished", lambda shown: f"{shown['finished']:,} of {shown['jobs']:,}"),
    ("Impossible", lambda shown: shown["impossible"]),
    ("Left waiting", lambda shown: shown["left_waiting"]),
    ("Allocated", lambda shown: _percent(shown["allocated"])),
    ("Stranded", lambda shown: _percent(shown["stranded"])),
    ("Not where it is due", lambda shown: _percent(shown["share_error"])),
    ("Waited, mean", _waited("mean")),
    ("Waited, p50", _waited("p50")),
    ("Waited, p90", _waited("p90")),
    ("Waited, p99", _waited("p99")),
    ("Waited, longest", _waited("max")),
    ("Preempted", lambda shown: f"{shown['preemptions']:,} times"),
    ("GPU hours wasted", lambda shown: f"{shown['wasted_gpu_hours']:,.1f}"),
    ("Ended after", lambda shown: format_duration(shown["all_ended_after_s"])),
)


def _both(name: str, now: dict[str, Json], changed: dict[str, Json]) -> tuple[object, ...]:
    old, new = now.get(name), changed.get(name)
    known = new or old or {}
    cells: list[object] = [name, known.get("submitted", 0)]
    for tell in _BY_PROJECT:
        cells += [tell(old) if old else "", tell(new) if new else ""]
    return tuple(cells)


_BY_PROJECT: tuple[Callable[[Json], object], ...] = (
    lambda found: f"{found['gpu_hours']:,.1f}",
    _waited("mean"),
    _waited("p90"),
    lambda found: found["preemptions"],
)


def _figures(shown: Json) -> list[tuple[str, object]]:
    waited = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in shown["wait_s"].items())
    return [
        ("GPUs", f"{shown['gpus']:,}"),
        ("Jobs", _jobs(shown)),
        (
            "Allocated",
            f"{_percent(shown['allocated'])} of the GPUs, while work came ({format_duration(shown['span_s'])})",
        ),
        ("Stranded", f"{_percent(shown['stranded'])} of the GPUs: free, but of no use to the usual job"),
        ("Not where it is due", f"{_percent(shown['share_error'])} of the GPUs: held beyond fair shares"),
        ("Waited", waited),
        ("Left waiting", shown["left_waiting"]),
        ("Preempted", f"{shown['preemptions']:,} times, {shown['preemptions_per_hour']:g} an hour"),
        ("Wasted", f"{shown['wasted_gpu_hours']:,.1f} GPU hours"),
        ("Ended after", format_duration(shown["all_ended_after_s"])),
        ("Pace", f"{shown['starts_per_s']:,.0f} starts and {_decisions(shown):,.0f} decisions a second"),
    ]


def _jobs(shown: Json) -> str:
    without = f", {shown['skipped']:,} without a GPU left out" if shown["skipped"] else ""
    never = f", {shown['impossible']:,} impossible" if shown["impossible"] else ""
    return f"{shown['jobs']:,}, {shown['finished']:,} finished{never}{without}"


def _decisions(shown: Json) -> float:
    return float(shown["decisions"] / shown["wall_s"]) if shown["wall_s"] else 0.0


def _project(name: str, found: Json) -> tuple[object, ...]:
    waited = [format_duration(found["wait_s"][which]) for which in ("mean", "p50", "p99", "max")]
    wasted = f"{found['wasted_gpu_hours']:,.1f}"
    hours = f"{found['gpu_hours']:,.1f}"
    return name, found["submitted"], found["finished"], hours, *waited, found["preemptions"], wasted


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
