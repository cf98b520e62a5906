"""Directories without a network: nodes that are written down, and several directories as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from gpupool.fabric.machines.directory import Directory, Place


class WrittenDirectory:
    """Nodes by name; ``put`` and ``remove`` change it while it is used, by one reader."""

    def __init__(self, sockets: Mapping[str, Path]) -> None:
        self._changes: asyncio.Queue[Place] = asyncio.Queue()
        for name, socket in sockets.items():
            self.put(name, socket)

    def put(self, name: str, socket: Path) -> None:
        """A node is reached here from now on."""
        self._changes.put_nowait(Place(name, socket))

    def remove(self, name: str) -> None:
        """A node is gone."""
        self._changes.put_nowait(Place(name, None))

    async def places(self) -> AsyncIterator[Place]:
        """Each node, then every change."""
        while True:
            yield await self._changes.get()


class Together:
    """Several directories as one; a node must be in one of them only."""

    def __init__(self, *directories: Directory) -> None:
        self._directories = directories

    async def places(self) -> AsyncIterator[Place]:
        """What any of them says; raises what one of them raises."""
        said: asyncio.Queue[Place | Exception] = asyncio.Queue()
        readers = [asyncio.create_task(_pour(directory, said)) for directory in self._directories]
        try:
            while True:
                place = await said.get()
                if isinstance(place, Exception):
                    raise place
                yield place
        finally:
            for reader in readers:
                reader.cancel()


async def _pour(directory: Directory, into: asyncio.Queue[Place | Exception]) -> None:
    try:
        async for place in directory.places():
            into.put_nowait(place)
    except Exception as error:  # noqa: BLE001 - raised by whoever reads
        into.put_nowait(error)
