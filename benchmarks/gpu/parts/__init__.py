"""The parts of the benchmark. Each module has a ``TITLE`` and ``measure(bench)``, which gives figures."""

from __future__ import annotations

from types import ModuleType

from parts import context, frameworks, hook, kills, memory, models, shares, timeslice

PARTS: dict[str, ModuleType] = {
    "frameworks": frameworks,
    "context": context,
    "memory": memory,
    "hook": hook,
    "timeslice": timeslice,
    "shares": shares,
    "models": models,
    "kills": kills,
}
