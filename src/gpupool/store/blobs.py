"""The blobs that the head keeps for those who send files: a bounded folder beside the database."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gpupool.blobs.keep import BlobFolder
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.trees import MOST_MANIFEST_BYTES, Tree, tree_from_bytes
from gpupool.services.files.ports import gone

MOST_KEPT_BYTES = 64 << 30  # of everybody; the disk may be the nearer bound
FILLED = 0.75  # of one owner's part, after a sweep
OWN_PART = 2  # one owner's files are at most this part of it
KEEP_S = 30 * 86400.0  # what nobody has used for so long goes, even where there is room
GRACE_S = 3600.0  # what belongs to no tree may belong to one that is being sent
PART_LIFE_S = 3 * 86400.0
T = TypeVar("T")


class KeptBlobs:
    """``services.files.ports.BlobStore`` over a folder; the disk is touched by worker threads only."""

    def __init__(self, path: Path, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._folder = BlobFolder(path)
        self._most_bytes = most_bytes
        self._used: dict[str, int] = {}
        self._changing: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by space

    async def have(self, space: str, blobs: Sequence[tuple[str, int]]) -> list[int]:
        """How many bytes of each are here."""
        return await asyncio.to_thread(lambda: [self._folder.have(space, sha256, size) for sha256, size in blobs])

    async def write(self, space: str, sha256: str, size: int, offset: int, data: bytes) -> int:
        """Add a piece."""
        return await self._add(space, len(data), lambda: self._folder.write(space, sha256, size, offset, data))

    async def put(self, space: str, blobs: Sequence[bytes]) -> list[str]:
        """Keep whole small blobs."""
        size = sum(len(blob) for blob in blobs)
        return await self._add(space, size, lambda: [self._folder.put(space, blob) for blob in blobs])

    async def read(self, space: str, sha256: str, offset: int, limit: int) -> bytes:
        """Bytes of a blob."""
        try:
            return await asyncio.to_thread(self._folder.read, space, sha256, offset, limit)
        except FileNotFoundError as error:
            raise gone() from error

    async def sizes(self, space: str, digests: Sequence[str]) -> list[int | None]:
        """How many bytes each whole blob has."""
        return await asyncio.to_thread(lambda: [self._folder.size(space, sha256) for sha256 in digests])

    async def tree(self, space: str, sha256: str) -> Tree:
        """The tree of a manifest."""
        return await asyncio.to_thread(self._tree, space, sha256)

    def _tree(self, space: str, sha256: str) -> Tree:
        try:
            return tree_from_bytes(self._folder.read(space, sha256, 0, MOST_MANIFEST_BYTES + 1))
        except FileNotFoundError as error:
            raise gone() from error

    async def mark(self, space: str, sha256: str) -> None:
        """Note that a tree is whole, and used now."""
        await asyncio.to_thread(self._folder.mark, space, sha256)

    async def is_marked(self, space: str, sha256: str) -> bool:
        """Whether it was noted."""
        return await asyncio.to_thread(self._folder.is_marked, space, sha256)

    # -- bounds ------------------------------------------------------------------------------------------------------

    async def _add(self, space: str, size: int, act: Callable[[], T]) -> T:
        async with self._changing[space]:
            if self._too_much(space, await self._used_by(space) + size):
                raise self._refused()
            result = await asyncio.to_thread(act)
            self._used[space] += size
            return result

    async def _used_by(self, space: str) -> int:
        """As it was counted last, and what came since: too much rather than too little, until the next sweep."""
        if space not in self._used:
            self._used[space] = await asyncio.to_thread(self._folder.used_by, space)
        return self._used[space]

    def _too_much(self, space: str, used: int) -> bool:
        others = sum(size for name, size in self._used.items() if name != space)
        return used > self._most_bytes // OWN_PART or used + others > self._most_bytes

    def _refused(self) -> GpupoolError:
        return GpupoolError(
            ErrorCode.OVER_LIMIT,
            f"The pool keeps at most {self._most_bytes // OWN_PART >> 20} MiB of one user's files, and "
            f"{self._most_bytes >> 20} MiB of everybody's, and live work needs what is there.",
            "Send less (.gpupoolignore), or wait for your work to end.",
        )

    async def sweep(self, live: Mapping[str, Collection[str]]) -> None:
        """Let go of what nothing needs any more."""
        for space in await asyncio.to_thread(self._folder.spaces):
            async with self._changing[space]:
                await asyncio.to_thread(self._sweep_space, space, live.get(space, ()))

    def _sweep_space(self, space: str, live: Collection[str]) -> None:
        """Drop trees that are old, and the oldest where room runs out; then blobs of no tree. Live trees stay."""
        folder, now = self._folder, time.time()
        sizes = {kept.sha256: kept for kept in folder.blobs(space)}
        needed: set[str] = set()
        room = self._most_bytes // OWN_PART * FILLED
        for mark in reversed(folder.marks(space)):
            blobs = self._blobs_of(space, mark.sha256)
            fits = sum(sizes[b].size for b in needed | blobs if b in sizes) <= room
            if mark.sha256 in live or (fits and mark.used_at > now - KEEP_S):
                needed |= blobs
            else:
                folder.unmark(space, mark.sha256)
        for kept in sizes.values():
            if kept.sha256 not in needed and kept.used_at < now - GRACE_S:
                folder.drop(space, kept.sha256)
        folder.drop_parts(space, now - PART_LIFE_S)
        self._used[space] = folder.used_by(space)

    def _blobs_of(self, space: str, tree: str) -> set[str]:
        with suppress(GpupoolError):
            return {tree, *self._tree(space, tree).blobs()}
        return {tree}
