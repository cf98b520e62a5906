"""Fetching folders that other heads took: what is here is not fetched again, and nothing counts before its SHA-256."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.trees import MOST_MANIFEST_BYTES, Tree
from gpupool.services.files.ports import BlobStore, Folder, OtherHeads

OWNERS_AT_ONCE = 3
ASKED_AT_ONCE = 500  # contents in one answer
_NO_ROOM = frozenset({ErrorCode.OVER_LIMIT, ErrorCode.DISK_FULL})

log = structlog.get_logger("gpupool.files")


@dataclass(slots=True)
class Round:
    """Heads that are asked one after the other; one that did not answer (and how) is not asked again in this round."""

    heads: Sequence[str]
    silent: dict[str, str] = field(default_factory=dict)


class Fetcher:
    """Brings folders of other heads into the store; ``make_room`` lets go of what nothing needs any more."""

    def __init__(self, store: BlobStore, heads: OtherHeads, make_room: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._heads = heads
        self._make_room = make_room

    async def fetch(self, folder: Folder, asked: Round) -> bool:
        """Whether all of a folder is here now; what was not to be had of one head is asked of the next.

        Raises OVER_LIMIT and DISK_FULL where there is no room for it. What came stays: the next try goes on there.
        """
        for head in asked.heads:
            if head in asked.silent:
                continue
            try:
                if await self._twice(head, folder):
                    return True
            except GpupoolError as error:
                if error.code in _NO_ROOM:
                    raise
                log.warning("folder not fetched", head=head, tree=folder.tree, code=error.code, why=error.message)
                if error.code is not ErrorCode.INVALID_FILE:
                    asked.silent[head] = error.message
        return False

    async def _twice(self, head: str, folder: Folder) -> bool:
        """What is wrong may be what was here before, of which nothing is left then; room may be made."""
        try:
            return await self._fetch(head, folder)
        except GpupoolError as error:
            if error.code in _NO_ROOM:
                await self._make_room()
            elif error.code is not ErrorCode.INVALID_FILE:
                raise
        return await self._fetch(head, folder)

    async def _fetch(self, head: str, folder: Folder) -> bool:
        tree = await self._tree(head, folder)
        if tree is None:
            return False
        sizes = tree.blobs()
        for wanted in _parcels(await self._missing(folder.space, sizes)):
            await self._take(head, folder.space, wanted, sizes)
        if await self._missing(folder.space, sizes):
            return False
        await self._store.mark(folder.space, folder.tree)
        log.info("folder fetched", head=head, tree=folder.tree, bytes=tree.total_bytes)
        return True

    async def _tree(self, head: str, folder: Folder) -> Tree | None:
        if not await self._whole(folder):
            here = (await self._store.have(folder.space, [(folder.tree, MOST_MANIFEST_BYTES)]))[0]
            await self._take(head, folder.space, [(folder.tree, max(here, 0))], {})
            if not await self._whole(folder):
                return None
        return await self._store.tree(folder.space, folder.tree)

    async def _whole(self, folder: Folder) -> bool:
        return await self._store.sizes(folder.space, [folder.tree]) != [None]

    async def _missing(self, space: str, sizes: Mapping[str, int]) -> list[tuple[str, int]]:
        """Contents that are not whole here, and how many bytes of each are."""
        held = await self._store.have(space, list(sizes.items()))
        return [
            (sha256, max(here, 0)) for (sha256, size), here in zip(sizes.items(), held, strict=True) if here != size
        ]

    async def _take(self, head: str, space: str, wanted: Sequence[tuple[str, int]], sizes: Mapping[str, int]) -> None:
        async with aclosing(self._heads.contents(head, space, wanted)) as pieces:
            async for piece in pieces:
                if piece.size is None:
                    continue
                expected = sizes.get(piece.sha256)
                if piece.size > MOST_MANIFEST_BYTES if expected is None else piece.size != expected:
                    raise GpupoolError(ErrorCode.INVALID_FILE, f"What {head} has is not as long as was said.", "")
                await self._store.write(space, piece.sha256, piece.size, piece.offset, piece.data)


async def by_owner(folders: Iterable[Folder], act: Callable[[Folder], Awaitable[None]]) -> None:
    """Do something with each: those of one owner one after the other, for they may have the same contents."""
    room = asyncio.Semaphore(OWNERS_AT_ONCE)
    spaces: defaultdict[str, list[Folder]] = defaultdict(list)
    for folder in folders:
        spaces[folder.space].append(folder)

    async def of_one(mine: Iterable[Folder]) -> None:
        async with room:
            for folder in mine:
                await act(folder)

    async with asyncio.TaskGroup() as group:
        for mine in spaces.values():
            group.create_task(of_one(mine))


def _parcels(wanted: Sequence[tuple[str, int]]) -> Iterator[Sequence[tuple[str, int]]]:
    for first in range(0, len(wanted), ASKED_AT_ONCE):
        yield wanted[first : first + ASKED_AT_ONCE]
