"""Figures of simulations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpupool.cli.render.text import Style, pairs, table
from gpupool.domain.units import format_duration

Json = dict[str, Any]


def simulation_lines(shown: Json, style: Style) -> list[str]:
    """Return the figures of a run and of its projects, and why some jobs could never start."""
    lines = pairs(_figures(shown), style)
    headers = (
        "PROJECT",
        "JOBS",
        "FINISHED",
        "GPU HOURS",
        "WAIT MEAN",
        "P50",
        "P99",
        "MAX",
        "DELAY MEAN",
        "P99",
        "PREEMPTED",
        "LOST",
    )
    rows = [_project(name, found) for name, found in shown["projects"].items()]
    lines += ["", *table(headers, rows, style)]
    return lines + ([""] + [f"Impossible: {reason}" for reason in shown["reasons"]] if shown["reasons"] else [])


def comparison_lines(now: Json, changed: Json, style: Style) -> list[str]:
    """Return the figures of two runs of the same jobs side by side, then their projects."""
    rows = [(what, tell(now), tell(changed)) for what, tell in _COMPARED]
    rows = [row for row in rows if row[1:] != ("", "")]
    lines = table(("", "CURRENT", "CHANGED"), rows, style)
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


def _delayed(which: str) -> Callable[[Json], str]:
    return lambda shown: format_duration(shown["delay_s"][which])


def _lost(shown: Json) -> str:
    return f"{shown['wasted_gpu_hours']:,.1f} ({_percent(shown['wasted_part'])})"


def _from_zero(tell: Callable[[Json], str]) -> Callable[[Json], object]:
    return lambda shown: tell(shown["from_zero"]) if "from_zero" in shown else ""


_COMPARED: tuple[tuple[str, Callable[[Json], object]], ...] = (
    ("GPUs", lambda shown: f"{shown['gpus']:,}"),
    ("Jobs finished", lambda shown: f"{shown['finished']:,} of {shown['jobs']:,}"),
    ("Impossible", lambda shown: shown["impossible"]),
    ("Still queued", lambda shown: shown["left_waiting"]),
    ("Allocated", lambda shown: _percent(shown["allocated"])),
    ("Stranded", lambda shown: _percent(shown["stranded"])),
    ("Above fair share", lambda shown: _percent(shown["share_error"])),
    ("Waited, mean", _waited("mean")),
    ("Waited, p50", _waited("p50")),
    ("Waited, p90", _waited("p90")),
    ("Waited, p99", _waited("p99")),
    ("Waited, max", _waited("max")),
    ("Delay of the end, mean", _delayed("mean")),
    ("Delay of the end, p99", _delayed("p99")),
    ("Preempted", lambda shown: f"{shown['preemptions']:,} times"),
    ("GPU hours lost", _lost),
    ("From zero: delay, mean", _from_zero(_delayed("mean"))),
    ("From zero: delay, p99", _from_zero(_delayed("p99"))),
    ("From zero: GPU hours lost", _from_zero(_lost)),
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
    from_zero = [("From zero", _without_checkpoints(shown["from_zero"]))] if "from_zero" in shown else []
    return [
        ("GPUs", f"{shown['gpus']:,}"),
        ("Jobs", _jobs(shown)),
        (
            "Allocated",
            f"{_percent(shown['allocated'])} of the GPUs, during submission ({format_duration(shown['span_s'])})",
        ),
        ("Stranded", f"{_percent(shown['stranded'])} of the GPUs: free, but too fragmented for typical jobs"),
        ("Above fair share", f"{_percent(shown['share_error'])} of the GPUs"),
        ("Waited", f"{_spread(shown['wait_s'])} (first start)"),
        ("Delayed", f"{_spread(shown['delay_s'])} (end, compared with running alone)"),
        ("Still queued", shown["left_waiting"]),
        ("Preempted", f"{shown['preemptions']:,} times, {shown['preemptions_per_hour']:g} an hour"),
        ("Lost", f"{shown['wasted_gpu_hours']:,.1f} GPU hours, {_percent(shown['wasted_part'])} of those used"),
        *from_zero,
        ("Ended after", format_duration(shown["all_ended_after_s"])),
        ("Pace", f"{shown['starts_per_s']:,.0f} starts and {_decisions(shown):,.0f} decisions a second"),
    ]


def _spread(times: Json) -> str:
    return ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in times.items())


def _without_checkpoints(shown: Json) -> str:
    mean, p99 = (format_duration(shown["delay_s"][which]) for which in ("mean", "p99"))
    return f"delayed mean {mean}, p99 {p99}; lost {_lost(shown)} GPU hours, if nothing is saved"


def _jobs(shown: Json) -> str:
    without = f", {shown['skipped']:,} without a GPU skipped" if shown["skipped"] else ""
    never = f", {shown['impossible']:,} impossible" if shown["impossible"] else ""
    return f"{shown['jobs']:,}, {shown['finished']:,} finished{never}{without}"


def _decisions(shown: Json) -> float:
    return float(shown["decisions"] / shown["wall_s"]) if shown["wall_s"] else 0.0


def _project(name: str, found: Json) -> tuple[object, ...]:
    waited = [format_duration(found["wait_s"][which]) for which in ("mean", "p50", "p99", "max")]
    delayed = [format_duration(found["delay_s"][which]) for which in ("mean", "p99")]
    lost, hours = f"{found['wasted_gpu_hours']:,.1f}", f"{found['gpu_hours']:,.1f}"
    return name, found["submitted"], found["finished"], hours, *waited, *delayed, found["preemptions"], lost


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
