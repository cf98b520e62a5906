"""Pull of folders from other heads; blobs that are here are not fetched again, and each is checked by its SHA-256."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import MAX_MANIFEST_BYTES, FileTree
from gpupool.services.ports.files import BlobStore, Folder, OtherHeads

OWNERS_AT_ONCE = 3
ASKED_AT_ONCE = 500  # contents in one answer
_NO_ROOM = frozenset({ErrorCode.OVER_LIMIT, ErrorCode.DISK_FULL})

log = structlog.get_logger("gpupool.files")


@dataclass(slots=True)
class Round:
    """Heads to ask in order; a silent head (with its error) is not asked again in this round."""

    heads: Sequence[str]
    silent: dict[str, str] = field(default_factory=dict)


class BlobPuller:
    """Pulls folders of other heads into the store; ``make_room`` deletes unneeded blobs."""

    def __init__(self, store: BlobStore, heads: OtherHeads, make_room: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._heads = heads
        self._make_room = make_room

    async def fetch(self, folder: Folder, asked: Round) -> bool:
        """Fetch a folder, from the next head if one lacks it; return True if it is complete.

        Raises OVER_LIMIT and DISK_FULL without space. Partial blobs stay, and the next try resumes them.
        """
        for head in asked.heads:
            if head in asked.silent:
                continue
            try:
                if await self._fetch_with_retry(head, folder):
                    return True
            except GpupoolError as error:
                if error.code in _NO_ROOM:
                    raise
                log.warning("folder not fetched", head=head, tree=folder.tree, code=error.code, why=error.message)
                if error.code is not ErrorCode.INVALID_FILE:
                    asked.silent[head] = error.message
        return False

    async def _fetch_with_retry(self, head: str, folder: Folder) -> bool:
        """Fetch a folder; on an invalid blob, which is then deleted, or without space, try a second time."""
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
        for wanted in _batches(await self._missing(folder.space, sizes)):
            await self._take(head, folder.space, wanted, sizes)
        if await self._missing(folder.space, sizes):
            return False
        await self._store.mark(folder.space, folder.tree)
        log.info("folder fetched", head=head, tree=folder.tree, bytes=tree.total_bytes)
        return True

    async def _tree(self, head: str, folder: Folder) -> FileTree | None:
        if not await self._whole(folder):
            here = (await self._store.have(folder.space, [(folder.tree, MAX_MANIFEST_BYTES)]))[0]
            await self._take(head, folder.space, [(folder.tree, max(here, 0))], {})
            if not await self._whole(folder):
                return None
        return await self._store.tree(folder.space, folder.tree)

    async def _whole(self, folder: Folder) -> bool:
        return await self._store.sizes(folder.space, [folder.tree]) != [None]

    async def _missing(self, space: str, sizes: Mapping[str, int]) -> list[tuple[str, int]]:
        """Return the incomplete blobs, with the number of bytes that are here."""
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
                if piece.size > MAX_MANIFEST_BYTES if expected is None else piece.size != expected:
                    raise GpupoolError(ErrorCode.INVALID_FILE, f"{head} sent a blob of the wrong length.", "")
                await self._store.write(space, piece.sha256, piece.size, piece.offset, piece.data)


async def by_owner(folders: Iterable[Folder], act: Callable[[Folder], Awaitable[None]]) -> None:
    """Call ``act`` for each folder; in order for one owner, because an owner's folders may share contents."""
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


def _batches(wanted: Sequence[tuple[str, int]]) -> Iterator[Sequence[tuple[str, int]]]:
    for first in range(0, len(wanted), ASKED_AT_ONCE):
        yield wanted[first : first + ASKED_AT_ONCE]
