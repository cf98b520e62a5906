"""Lines for the results of a sweep and the efficiency of a workload."""

from __future__ import annotations

from typing import Any

from gpupool.cli.render.text import Style, clean, table
from gpupool.domain.units import format_duration, format_mib

Json = dict[str, Any]


def result_lines(found: Json, style: Style) -> list[str]:
    """Return the table of ``results``."""
    names = [*found["parameters"], *found["metrics"]]
    rows = [
        [
            str(row["index"]),
            row["state"],
            *(_text(row["parameters"].get(name, row["metrics"].get(name))) for name in names),
            _text(row["step"]),
            format_duration(row["ran_s"]),
        ]
        for row in found["rows"]
    ]
    return table(["REPLICA", "STATE", *map(clean, names), "STEP", "RAN"], rows, style, state=1)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else clean(value)


def efficiency_pairs(found: Json) -> list[tuple[str, object]]:
    """Return the lines of ``describe`` about requested and used resources."""
    if not found["measured_s"]:
        return []
    parts = []
    if found["gpu_percent"] is not None:
        parts.append(f"GPU {found['gpu_percent']:.0f}% busy")
    if found["gpu_memory_mib"]:
        granted = found["gpus"] * found["granted_memory_mib"]
        of = f" of {format_mib(granted)}" if granted else ""
        parts.append(f"GPU memory {format_mib(found['gpu_memory_mib'])}{of}")
    if found["cpu_percent"] is not None:
        parts.append(f"CPUs {found['cpu_percent']:.0f}%")
    if found["memory_mib"]:
        parts.append(f"memory {format_mib(found['memory_mib'])}")
    return [("Used", ", ".join(parts)), *(("Suggestion", each["sentence"]) for each in found["suggestions"])]
