"""The parts of the benchmark, the most valuable ones first. Each module has a ``TITLE`` and ``tasks()``."""

from __future__ import annotations

from types import ModuleType

from parts import context, frameworks, kills, latency, launch, memory, models, shares, sharing
from parts.tasks import Task

PARTS: dict[str, ModuleType] = {
    "context": context,
    "memory": memory,
    "shares": shares,
    "launch": launch,
    "latency": latency,
    "models": models,
    "frameworks": frameworks,
    "kills": kills,
    "sharing": sharing,
}


def tasks_of(names: list[str]) -> list[Task]:
    """Return the tasks of these parts in the order of their value."""
    found = [task for name in PARTS if name in names for task in PARTS[name].tasks()]
    return sorted(found, key=lambda task: task.tier)
