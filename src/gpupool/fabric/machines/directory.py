"""Directories: names of nodes and the sockets of their agents, as an interface and without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

LOOK_EVERY_S = 0.25
_SUFFIX = ".sock"


@dataclass(frozen=True, slots=True)
class NodePlace:
    """The unix socket on this machine that leads to a node's agent; None: the node was removed.

    A node that does not answer is not removed: that is handled by the fabric.
    """

    node: str
    socket: Path | None


class Directory(Protocol):
    """A source of node names and sockets."""

    def places(self) -> AsyncIterator[NodePlace]:
        """Yield the place of each node, then every change, forever; repetitions have no effect."""


class StaticDirectory:
    """Nodes by name; ``put`` and ``remove`` change it while one reader uses it."""

    def __init__(self, sockets: Mapping[str, Path]) -> None:
        self._changes: asyncio.Queue[NodePlace] = asyncio.Queue()
        for name, socket in sockets.items():
            self.put(name, socket)

    def put(self, name: str, socket: Path) -> None:
        """Add a node or change its socket."""
        self._changes.put_nowait(NodePlace(name, socket))

    def remove(self, name: str) -> None:
        """Remove a node."""
        self._changes.put_nowait(NodePlace(name, None))

    async def places(self) -> AsyncIterator[NodePlace]:
        """Yield each node, then every change."""
        while True:
            yield await self._changes.get()


class BridgeDirectory:
    """The nodes that the bridge to Ray reaches: each socket in its folder is a node.

    A restart of the bridge changes nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def places(self) -> AsyncIterator[NodePlace]:
        """Yield each node, then new ones. A node whose socket is missing is lost, not removed."""
        known: set[str] = set()
        while True:
            for name in sorted({path.name.removesuffix(_SUFFIX) for path in self._folder.glob(f"*{_SUFFIX}")} - known):
                known.add(name)
                yield NodePlace(name, self._folder / f"{name}{_SUFFIX}")
            await asyncio.sleep(LOOK_EVERY_S)


class CombinedDirectory:
    """Several directories combined; a node must be in only one of them."""

    def __init__(self, *directories: Directory) -> None:
        self._directories = directories

    async def places(self) -> AsyncIterator[NodePlace]:
        """Yield the places of all directories; raise an error of any of them."""
        said: asyncio.Queue[NodePlace | Exception] = asyncio.Queue()
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


async def _pour(directory: Directory, into: asyncio.Queue[NodePlace | Exception]) -> None:
    try:
        async for place in directory.places():
            into.put_nowait(place)
    except Exception as error:  # noqa: BLE001 - raised in the reader
        into.put_nowait(error)
