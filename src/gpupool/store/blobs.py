"""The head's blobs of uploaded files: a folder of limited size next to the database."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gpupool.blobs.blob_store import BlobFolder
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import MAX_MANIFEST_BYTES, FileTree, tree_from_bytes
from gpupool.services.ports.files import gone

MAX_STORED_BYTES = 64 << 30  # of all users; the disk may be smaller
SWEEP_TARGET = 0.75  # fraction of one owner's limit that is used after a sweep
OWNER_DIVISOR = 2  # one owner may use at most 1/2 of it
MAX_UNUSED_S = 30 * 86400.0  # blobs unused for longer are deleted, even if there is space
GRACE_S = 3600.0  # blobs without a tree may belong to a tree that is being sent
MAX_PART_AGE_S = 3 * 86400.0
T = TypeVar("T")


class StoredBlobs:
    """Implements ``services.ports.files.BlobStore`` in a folder; only worker threads access the disk."""

    def __init__(self, path: Path, most_bytes: int = MAX_STORED_BYTES) -> None:
        self._folder = BlobFolder(path)
        self._most_bytes = most_bytes
        self._used: dict[str, int] = {}
        self._changing: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by space

    async def have(self, space: str, blobs: Sequence[tuple[str, int]]) -> list[int]:
        """Return how many bytes of each blob are stored."""
        return await asyncio.to_thread(lambda: [self._folder.have(space, sha256, size) for sha256, size in blobs])

    async def write(self, space: str, sha256: str, size: int, offset: int, data: bytes) -> int:
        """Add a piece; return the new size."""
        return await self._add(space, len(data), lambda: self._folder.write(space, sha256, size, offset, data))

    async def put(self, space: str, blobs: Sequence[bytes]) -> list[str]:
        """Store complete small blobs."""
        size = sum(len(blob) for blob in blobs)
        return await self._add(space, size, lambda: [self._folder.put(space, blob) for blob in blobs])

    async def read(self, space: str, sha256: str, offset: int, limit: int) -> bytes:
        """Return bytes of a blob."""
        try:
            return await asyncio.to_thread(self._folder.read, space, sha256, offset, limit)
        except FileNotFoundError as error:
            raise gone() from error

    async def sizes(self, space: str, digests: Sequence[str]) -> list[int | None]:
        """Return the size of each complete blob."""
        return await asyncio.to_thread(lambda: [self._folder.size(space, sha256) for sha256 in digests])

    async def tree(self, space: str, sha256: str) -> FileTree:
        """Return the tree of a manifest."""
        return await asyncio.to_thread(self._tree, space, sha256)

    def _tree(self, space: str, sha256: str) -> FileTree:
        try:
            return tree_from_bytes(self._folder.read(space, sha256, 0, MAX_MANIFEST_BYTES + 1))
        except FileNotFoundError as error:
            raise gone() from error

    async def mark(self, space: str, sha256: str) -> None:
        """Record that a tree is complete, and in use now."""
        await asyncio.to_thread(self._folder.mark, space, sha256)

    async def is_marked(self, space: str, sha256: str) -> bool:
        """Return whether a tree is recorded as complete."""
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
        """Return the last count plus later additions: never too little until the next sweep."""
        if space not in self._used:
            self._used[space] = await asyncio.to_thread(self._folder.used_by, space)
        return self._used[space]

    def _too_much(self, space: str, used: int) -> bool:
        others = sum(size for name, size in self._used.items() if name != space)
        return used > self._most_bytes // OWNER_DIVISOR or used + others > self._most_bytes

    def _refused(self) -> GpupoolError:
        return GpupoolError(
            ErrorCode.OVER_LIMIT,
            f"The pool stores at most {self._most_bytes // OWNER_DIVISOR >> 20} MiB of files per user and "
            f"{self._most_bytes >> 20} MiB in total, and live work needs the stored files.",
            "Send less (.gpupoolignore), or wait for your work to end.",
        )

    async def sweep(self, live: Mapping[str, Collection[str]]) -> None:
        """Delete trees and blobs that nothing needs any more."""
        for space in await asyncio.to_thread(self._folder.spaces):
            async with self._changing[space]:
                await asyncio.to_thread(self._sweep_space, space, live.get(space, ()))

    def _sweep_space(self, space: str, live: Collection[str]) -> None:
        """Delete old trees, and the oldest if space is short; then blobs without a tree. Live trees stay."""
        folder, now = self._folder, time.time()
        sizes = {kept.sha256: kept for kept in folder.blobs(space)}
        needed: set[str] = set()
        room = self._most_bytes // OWNER_DIVISOR * SWEEP_TARGET
        for mark in reversed(folder.marks(space)):
            blobs = self._blobs_of(space, mark.sha256)
            fits = sum(sizes[b].size for b in needed | blobs if b in sizes) <= room
            if mark.sha256 in live or (fits and mark.used_at > now - MAX_UNUSED_S):
                needed |= blobs
            else:
                folder.unmark(space, mark.sha256)
        for kept in sizes.values():
            if kept.sha256 not in needed and kept.used_at < now - GRACE_S:
                folder.drop(space, kept.sha256)
        folder.drop_parts(space, now - MAX_PART_AGE_S)
        self._used[space] = folder.used_by(space)

    def _blobs_of(self, space: str, tree: str) -> set[str]:
        with suppress(GpupoolError):
            return {tree, *self._tree(space, tree).blobs()}
        return {tree}
