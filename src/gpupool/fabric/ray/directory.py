"""Which nodes the bridge reaches, read from its folder: a socket is a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from gpupool.fabric.machines.directory import Place

LOOK_EVERY_S = 0.25
_SUFFIX = ".sock"


class BridgeDirectory:
    """``fabric.machines.Directory``; a bridge that is away changes nothing until its successor has looked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def places(self) -> AsyncIterator[Place]:
        """Each node, then every change. A node whose socket is missing stays: it is lost, not forgotten."""
        known: set[str] = set()
        while True:
            for name in sorted(self._names() - known):
                known.add(name)
                yield Place(name, self._folder / f"{name}{_SUFFIX}")
            await asyncio.sleep(LOOK_EVERY_S)

    def _names(self) -> set[str]:
        return {path.name.removesuffix(_SUFFIX) for path in self._folder.glob(f"*{_SUFFIX}")}
