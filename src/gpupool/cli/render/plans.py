"""Sentences about the plan of a submission."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpupool.cli.render.text import Style, clean, table
from gpupool.cli.render.workloads import why_lines
from gpupool.domain.units import WHOLE_GPU, format_permille

Json = dict[str, Any]

HEADERS = ("REPLICA", "NODE", "GPUS")
MAX_SHOWN = 50  # replicas
_EVICTION_REASONS = {
    "reclaim": "their project is above its fair share",
    "preempt": "they have a lower priority in your project",
    "consolidate": "they restart on other GPUs at once",
    "booking": "their node is reserved for others",
}


def plan_lines(plan: Json, style: Style) -> list[str]:
    """Return the lines of ``plan``."""
    return [*_starts(plan, style), *_waits(plan, style), *(_displaced(d) for d in plan["displaced"])]


def _starts(plan: Json, style: Style) -> Iterator[str]:
    starts, asked = plan["starts"], plan["asked"]
    if asked == 1:
        if starts:
            yield f"It would start now on {clean(starts[0]['node'])}: {gpus_of(starts[0]['gpus'])}."
        return
    more = f"; {asked} of {plan['completions']} would be queued at once" if plan["completions"] > asked else ""
    yield f"{len(starts)} of {asked} replicas would start now{more}."
    if starts:
        rows = [(start["index"], start["node"], gpus_of(start["gpus"])) for start in starts[:MAX_SHOWN]]
        yield from table(HEADERS, rows, style)
    if len(starts) > MAX_SHOWN:
        yield f"... and {len(starts) - MAX_SHOWN} more; --json shows all."


def _waits(plan: Json, style: Style) -> Iterator[str]:
    why = plan["why"]
    if why is not None:
        who = "It" if plan["asked"] == 1 else "The others" if plan["starts"] else "They"
        yield from why_lines({**why, "sentence": f"{who} would wait: {why['sentence']}"}, style)


def _displaced(displaced: Json) -> str:
    count = displaced["replicas"]
    work = f"{count} replica{'s' if count > 1 else ''} of {clean(displaced['project'])}"
    held = format_permille(displaced["permille"])
    ground = _EVICTION_REASONS.get(displaced["kind"], displaced["kind"])
    return f"{work} ({held} GPU) would be evicted for it: {ground}."


def gpus_of(shares: Sequence[Json]) -> str:
    """Return ``GPU 0``, ``GPUs 0, 1`` or ``0.50 of GPU 3``."""
    numbers = ", ".join(str(share["index"]) for share in shares)
    name = f"GPU{'s' if len(shares) > 1 else ''} {numbers}"
    part = shares[0]["permille"] if shares else WHOLE_GPU
    return name if part == WHOLE_GPU else f"{format_permille(part)} of {name}"
