"""The options of ``project create`` and ``project set`` that are rules for the project's work."""

from __future__ import annotations

from typing import Any

from gpupool.cli.options import Kind, Option
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.units import parse_duration_s

NONE = "none"
PANEL = "Rules for its work"
RULES = (
    Option("max_time_limit", "--max-time-limit", Kind.TEXT, "Longest time limit it may ask for; none.", PANEL, "TIME"),
    Option("max_gpus", "--max-gpus", Kind.TEXT, "Most GPUs of one replica: 2, 0.5; none.", PANEL, "GPUS"),
    Option("min_runtime", "--min-runtime", Kind.TEXT, "Training is not evicted sooner; none.", PANEL, "TIME"),
    Option("windows", "--windows", Kind.TEXT, "When training may start: 'nights; weekends'; none.", PANEL, "TIMES"),
    Option("images", "--images", Kind.TEXT, "Container images: 'nvcr.io/nvidia/*,localhost/*'; none.", PANEL, "LIST"),
    Option("volumes", "--volumes", Kind.TEXT, "Folders in which volumes must lie: /data,/home; none.", PANEL, "LIST"),
    Option("pools", "--pools", Kind.TEXT, "Runs only on nodes with these labels pool: a100,t4; none.", PANEL, "LIST"),
)


_LISTS = (
    ("windows", "windows", ";"),
    ("pools", "node_pools", ","),
    ("images", "images", ","),
    ("volumes", "volumes", ","),
)


def rules_body(values: dict[str, Any]) -> dict[str, Any]:
    """The field ``rules`` of what was given, if anything was. Raises ``GpupoolError``."""
    rules: dict[str, Any] = {}
    if "max_time_limit" in values:
        text = values["max_time_limit"]
        rules["max_time_limit_s"] = None if text == NONE else parse_duration_s(text)
    if "min_runtime" in values:
        rules["min_runtime_s"] = _least_s(values["min_runtime"])
    if "max_gpus" in values:
        rules["max_gpus_permille"] = _permille(values["max_gpus"])
    for option, field, separator in _LISTS:
        if option in values:
            parts = [part.strip() for part in values[option].split(separator)]
            rules[field] = [] if values[option] == NONE else [part for part in parts if part]
    return {"rules": rules} if rules else {}


def _least_s(text: str) -> float | None:
    """A time that may be none at all, which is not the same as no rule."""
    if text == NONE:
        return None
    return 0.0 if text in {"0", "0s"} else parse_duration_s(text)


def _permille(text: str) -> int | None:
    if text == NONE:
        return None
    from gpupool.cli.commands.projects import gpu_permille

    permille = gpu_permille(text)
    if not permille:
        raise GpupoolError(ErrorCode.INVALID_COUNT, f"'{text[:40]}' is no bound on GPUs.", "Write 2, 0.5, or none.")
    return permille
