"""What a simulation showed, as people see it."""

from __future__ import annotations

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
        ("Waited", waited),
        ("Left waiting", shown["left_waiting"]),
        ("Preempted", f"{shown['preemptions']:,} times, {shown['wasted_gpu_hours']:,.1f} GPU hours wasted"),
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
