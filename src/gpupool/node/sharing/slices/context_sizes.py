"""Sizes of CUDA contexts by GPU model, measured in programs and stored for later ones.

The size depends on the driver version and the GPU model, so both are the key. The smallest measured size is kept: later
samples of a program include modules and local memory, and slots contain what the tenant wrote. A size that is too small
does no harm, because the share library measures each context when it is created.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpupool.node.host.paths import read_json, write_json

MIN_BYTES = 32 << 20  # other sizes are not plausible for a context
MAX_BYTES = 2 << 30


class ContextSizes:
    """Sizes by model, and the model of each GPU by UUID, in a JSON file that outlives the agent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        known = read_json(path) or {}
        self._sizes: dict[str, int] = {model: size for model, size in _pairs(known, "sizes", int) if _plausible(size)}
        self._models: dict[str, str] = dict(_pairs(known, "models", str))

    def of(self, uuid: str) -> int | None:
        """Return the size in bytes for a GPU; None if it is unknown."""
        return self._sizes.get(self._models.get(uuid, ""))

    def learn(self, uuid: str, model: str, size: int) -> None:
        """Record that a context on this GPU, of this model and driver version, took ``size`` bytes."""
        smallest = min(size, self._sizes.get(model, size))
        if not model or not _plausible(size) or (self._models.get(uuid), self._sizes.get(model)) == (model, smallest):
            return
        self._models[uuid], self._sizes[model] = model, smallest
        with contextlib.suppress(OSError):  # the next agent measures again
            write_json(self._path, {"sizes": self._sizes, "models": self._models}, durable=False)


def _plausible(size: int) -> bool:
    return MIN_BYTES <= size <= MAX_BYTES


def _pairs(data: Mapping[str, Any], name: str, kind: type) -> list[tuple[str, Any]]:
    found = data.get(name)
    return [(key, value) for key, value in found.items() if isinstance(value, kind)] if isinstance(found, dict) else []
