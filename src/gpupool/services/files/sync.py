"""Sync of folders: a standby copies the folders that live workloads need, to have them when it becomes the leader."""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import structlog

from gpupool.domain.errors import NO_LEADER_CODES, ErrorCode, GpupoolError
from gpupool.services.files.pull import OWNERS_AT_ONCE, BlobPuller, Round
from gpupool.services.ports.files import BlobStore, Folder, OtherHeads

PAUSE_S = 5.0  # between rounds
MAX_PAUSE_S = 60.0  # without an answer of a leader, and before a failed folder is retried
SWEEP_EVERY_S = 3600.0

log = structlog.get_logger("gpupool.files")


class FolderSync:
    """Keeps the blob store of a standby in sync with the folders that the leader needs."""

    def __init__(
        self,
        store: BlobStore,
        heads: OtherHeads,
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._store = store
        self._heads = heads
        self._monotonic = monotonic
        self._sleep = sleep
        self._fetcher = BlobPuller(store, heads, self._sweep)
        self._here: set[Folder] = set()
        self._needed: dict[str, set[str]] | None = None  # by space, from the last answer; None: no answer yet
        self._failures: dict[Folder, tuple[int, float]] = {}  # number of failures, and time of the next try
        self._fetching: dict[str, asyncio.Task[None]] = {}  # by space
        self._swept_at = -math.inf  # sweep at once, because a sweep also counts the blobs

    async def run(self) -> None:
        """Run for ever."""
        pause_s = PAUSE_S
        try:
            while True:
                led = await self._sync_logged()
                pause_s = PAUSE_S if led else min(pause_s * 2, MAX_PAUSE_S)
                await self._sleep(pause_s * random.uniform(0.75, 1.25))  # noqa: S311 - it only spreads the load
        finally:
            for task in self._fetching.values():
                task.cancel()
            await self.fetched()

    async def _sync_logged(self) -> bool:
        try:
            return await self.sync()
        except Exception:
            log.exception("folders not copied")
            return False

    async def sync(self) -> bool:
        """Start to fetch missing folders; return True if a leader has answered."""
        found = await self._ask()
        if found is None:
            return False
        leader, needed = found
        self._needed = _by_space(needed)
        self._here &= set(needed)
        self._failures = {folder: self._failures[folder] for folder in needed if folder in self._failures}
        if self._monotonic() >= self._swept_at + SWEEP_EVERY_S:
            await self._sweep()
        self._begin(leader, _by_space(folder for folder in needed if folder not in self._here))
        return True

    def _begin(self, leader: str, wanted: Mapping[str, set[str]]) -> None:
        """Start one task for each owner: an owner's folders may share contents, so they are fetched in order."""
        self._fetching = {space: task for space, task in self._fetching.items() if not task.done()}
        for space in sorted(wanted.keys() - self._fetching.keys(), key=lambda _: random.random()):  # noqa: S311 - any fair order
            if len(self._fetching) >= OWNERS_AT_ONCE:
                return
            self._fetching[space] = asyncio.create_task(self._fetch_all(space, wanted[space], Round([leader])))

    async def fetched(self) -> None:
        """Wait for all fetches in progress."""
        await asyncio.gather(*self._fetching.values(), return_exceptions=True)

    async def _ask(self) -> tuple[str, Sequence[Folder]] | None:
        for head in self._heads.names():
            try:
                return head, await self._heads.needed(head)
            except GpupoolError as error:
                if error.code not in NO_LEADER_CODES | {ErrorCode.POOL_UNREACHABLE}:
                    log.warning("a head does not say what is needed", head=head, code=error.code, why=error.message)
        return None

    async def _fetch_all(self, space: str, trees: Iterable[str], asked: Round) -> None:
        for tree in sorted(trees):
            folder = Folder(space, tree)
            if not asked.silent and self._monotonic() >= self._failures.get(folder, (0, 0.0))[1]:
                await self._fetch(folder, asked)

    async def _fetch(self, folder: Folder, asked: Round) -> None:
        try:
            if await self._store.is_marked(folder.space, folder.tree) or await self._fetcher.fetch(folder, asked):
                self._here.add(folder)
                self._failures.pop(folder, None)
                return
        except (GpupoolError, OSError) as error:
            log.warning("folder not copied", tree=folder.tree, error=str(error))
        failures = self._failures.get(folder, (0, 0.0))[0]
        pause_s = min(PAUSE_S * 2 ** min(failures, 10), MAX_PAUSE_S)
        self._failures[folder] = (failures + 1, self._monotonic() + pause_s)

    async def _sweep(self) -> None:
        """Delete unneeded blobs, but never before the needed folders are known."""
        if self._needed is not None:
            self._swept_at = self._monotonic()
            await self._store.sweep(self._needed)


def _by_space(folders: Iterable[Folder]) -> dict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for folder in folders:
        found[folder.space].add(folder.tree)
    return dict(found)
