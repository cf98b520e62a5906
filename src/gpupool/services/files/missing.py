"""Folders of live workloads that are on another head: fetched after a failover, while the workloads wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.work.program.file_tree import user_space
from gpupool.domain.work.workload import ReplicaState, Workload
from gpupool.scheduling.explain.wait_reason import Explanation, WaitCode
from gpupool.services.control.engine import Engine
from gpupool.services.files.pull import BlobPuller, Round, by_owner
from gpupool.services.files.service import FileService
from gpupool.services.lifecycle import transitions
from gpupool.services.ports.files import Folder, gone
from gpupool.services.state.mirror import Draft

PAUSE_S = 5.0
# A machine that only has to be restarted is back within this time. After it, users should learn that it is not.
FETCH_TIMEOUT_S = 3600.0

log = structlog.get_logger("gpupool.files")


@dataclass(slots=True)
class MissingFolder:
    """A folder that is not on this head; ``since`` is monotonic, in seconds."""

    since: float
    why: str = "the other heads are being queried"
    nowhere: bool = False  # all of them have answered that they do not have it


class MissingFolders:
    """The folders of live workloads that are not on this head."""

    def __init__(self) -> None:
        self.folders: dict[Folder, MissingFolder] = {}

    def needed_by(self, workload: Workload) -> bool:
        """Return True if a workload must not start yet because its folder is not here."""
        return bool(self.folders and workload.program.tree) and _folder_of(workload) in self.folders


class FolderRecovery:
    """Fetches missing folders; ends workloads whose folder no head has, or no head that has it comes back."""

    def __init__(self, engine: Engine, files: FileService, missing: MissingFolders) -> None:
        self._engine = engine
        self._files = files
        self._missing = missing.folders

    async def load(self) -> None:
        """Find missing folders when this head becomes the leader; folders sent later are here."""
        blobs, heads = self._engine.ports.blobs, self._engine.ports.other_heads
        if blobs is None or heads is None or not heads.names():
            return
        now = self._engine.ports.clock.monotonic()
        for space, trees in self._files.live().items():
            for tree in trees:
                if not await blobs.is_marked(space, tree):
                    self._missing[Folder(space, tree)] = MissingFolder(now)
        if self._missing:
            log.warning("folders of live work are not on this head", count=len(self._missing))

    def explain(self, workload: Workload) -> Explanation:
        """Explain why a workload waits for its folder."""
        folder = self._missing.get(_folder_of(workload))
        left_s = FETCH_TIMEOUT_S - (self._engine.ports.clock.monotonic() - folder.since) if folder else 0.0
        why = folder.why if folder else "the folder has arrived"
        return Explanation(
            WaitCode.FOLDER,
            f"waits for its folder, which is not on the leader: {why}.",
            numbers={"given_up_in_s": round(max(left_s, 0.0))},
            would_help=("start the machine of the other head", "submit it from its folder again"),
            estimate_basis="it depends on when the folder can be fetched",
        )

    async def run(self) -> None:
        """Fetch until no folder is missing, then wait for ever, because folders sent later are here."""
        ports = self._engine.ports
        if ports.blobs is not None and ports.other_heads is not None:
            blobs = ports.blobs
            fetcher = BlobPuller(blobs, ports.other_heads, lambda: blobs.sweep(self._files.live()))
            while self._missing:
                try:
                    await self._round(fetcher, Round(ports.other_heads.names()))
                except Exception:
                    log.exception("could not fetch the missing folders")
                await ports.sleep(PAUSE_S)
        await asyncio.Event().wait()

    async def _round(self, fetcher: BlobPuller, asked: Round) -> None:
        live = self._files.live()

        async def look_for(folder: Folder) -> None:
            state = self._missing[folder]
            if folder.tree not in live.get(folder.space, ()):
                del self._missing[folder]
            elif await self._fetch(fetcher, folder, asked, state):
                self._release(folder)
            elif state.nowhere or self._engine.ports.clock.monotonic() - state.since > FETCH_TIMEOUT_S:
                await self._give_up(folder)

        await by_owner(list(self._missing), look_for)

    async def _fetch(self, fetcher: BlobPuller, folder: Folder, asked: Round, state: MissingFolder) -> bool:
        try:
            if await fetcher.fetch(folder, asked):
                return True
        except (GpupoolError, OSError) as error:
            state.nowhere = False
            state.why = f"this head has no space for it ({str(error).splitlines()[0].rstrip('.')})"
            return False
        self._missing[folder] = self._missing.pop(folder)  # to the end, so that it delays others in this round only
        state.nowhere = not asked.silent
        state.why = f"{', '.join(sorted(asked.silent))} may have it but cannot be reached"
        return False

    def _release(self, folder: Folder) -> None:
        del self._missing[folder]
        self._engine.feed.offer_again(work.id for work in self._work_of(folder))
        self._engine.work.set()

    async def _give_up(self, folder: Folder) -> None:
        """End workloads that wait for the folder; later ones fail when they start, as without any folder."""
        log.warning("folder given up", tree=folder.tree)
        ids = [work.id for work in self._work_of(folder)]
        await self._engine.transact(lambda draft: _end_waiting(draft, ids))
        self._release(folder)

    def _work_of(self, folder: Folder) -> list[Workload]:
        works = self._engine.mirror.workloads.values()
        return [work for work in works if work.program.tree and _folder_of(work) == folder]


def _folder_of(workload: Workload) -> Folder:
    return Folder(user_space(workload.user), workload.program.tree)


def _end_waiting(draft: Draft, workloads: Iterable[WorkloadId]) -> None:
    for workload_id in workloads:
        workload = draft.workload(workload_id)
        for replica in list(draft.replicas(workload_id)) if workload is not None else ():
            if workload is not None and replica.state is ReplicaState.PENDING:
                transitions.stop(draft, workload, replica, Reason.START_FAILED, sentence=gone().message)
