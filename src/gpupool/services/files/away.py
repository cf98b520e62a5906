"""Folders that live work needs and that another head took: fetched after the lead has moved, while the work waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.trees import space_of
from gpupool.domain.workload import ReplicaState, Workload
from gpupool.scheduling.explain import Explanation, WaitCode
from gpupool.services import transitions
from gpupool.services.engine import Engine
from gpupool.services.files.fetching import Fetcher, Round, by_owner
from gpupool.services.files.ports import Folder, gone
from gpupool.services.files.service import FileService
from gpupool.services.mirror import Draft

PAUSE_S = 5.0
# A machine that went down is back within this if it is a matter of starting it again; whoever submitted should not
# have to wait longer to hear that it is not.
AWAIT_S = 3600.0

log = structlog.get_logger("gpupool.files")


@dataclass(slots=True)
class Away:
    """A folder that is not here: since when (seconds, monotonic) it is looked for, and what stands in the way."""

    since: float
    why: str = "the other heads are being asked for it"
    nowhere: bool = False  # all of them have answered that they do not have it


class FoldersAway:
    """Work whose folder is away is not placed; it ends when no head has the folder, or none that does comes back."""

    def __init__(self, engine: Engine, files: FileService) -> None:
        self._engine = engine
        self._files = files
        self._away: dict[Folder, Away] = {}
        engine.demand.away = self.holds

    async def load(self) -> None:
        """See what is here when this head begins to lead; what is sent from now on is."""
        blobs, heads = self._engine.ports.blobs, self._engine.ports.other_heads
        if blobs is None or heads is None or not heads.names():
            return
        now = self._engine.ports.clock.monotonic()
        for space, trees in self._files.live().items():
            for tree in trees:
                if not await blobs.is_marked(space, tree):
                    self._away[Folder(space, tree)] = Away(now)
        if self._away:
            log.warning("folders of live work are not on this head", count=len(self._away))

    def holds(self, workload: Workload) -> bool:
        """Whether a workload must not start yet because its folder is not here."""
        return bool(self._away and workload.program.tree) and _folder_of(workload) in self._away

    def explain(self, workload: Workload) -> Explanation:
        """Why it waits."""
        away = self._away.get(_folder_of(workload))
        left_s = AWAIT_S - (self._engine.ports.clock.monotonic() - away.since) if away else 0.0
        why = away.why if away else "it has just come"
        return Explanation(
            WaitCode.FOLDER,
            f"waits for its folder, which is not on the head that leads: {why}.",
            numbers={"given_up_in_s": round(max(left_s, 0.0))},
            would_help=("start the machine of the other head", "submit it from its folder again"),
            estimate_basis="it depends on when the folder can be fetched",
        )

    async def run(self) -> None:
        """Fetch until nothing is away, then rest for ever: what is sent later is here."""
        ports = self._engine.ports
        if ports.blobs is not None and ports.other_heads is not None:
            blobs = ports.blobs
            fetcher = Fetcher(blobs, ports.other_heads, lambda: blobs.sweep(self._files.live()))
            while self._away:
                try:
                    await self._round(fetcher, Round(ports.other_heads.names()))
                except Exception:
                    log.exception("folders not looked for")
                await ports.sleep(PAUSE_S)
        await asyncio.Event().wait()

    async def _round(self, fetcher: Fetcher, asked: Round) -> None:
        live = self._files.live()

        async def look_for(folder: Folder) -> None:
            away = self._away[folder]
            if folder.tree not in live.get(folder.space, ()):
                del self._away[folder]
            elif await self._fetched(fetcher, folder, asked, away):
                self._release(folder)
            elif away.nowhere or self._engine.ports.clock.monotonic() - away.since > AWAIT_S:
                await self._give_up(folder)

        await by_owner(list(self._away), look_for)

    async def _fetched(self, fetcher: Fetcher, folder: Folder, asked: Round, away: Away) -> bool:
        try:
            if await fetcher.fetch(folder, asked):
                return True
        except (GpupoolError, OSError) as error:
            away.nowhere = False
            away.why = f"there is no room for it here ({str(error).splitlines()[0].rstrip('.')})"
            return False
        self._away[folder] = self._away.pop(folder)  # one that a head cannot send holds up others in this round only
        away.nowhere = not asked.silent
        away.why = f"{', '.join(sorted(asked.silent))} may have it and cannot be asked"
        return False

    def _release(self, folder: Folder) -> None:
        del self._away[folder]
        self._engine.demand.look_again(work.id for work in self._work_of(folder))
        self._engine.work.set()

    async def _give_up(self, folder: Folder) -> None:
        """What waits for it ends; what starts later ends when it is placed, as any work without its folder."""
        log.warning("folder given up", tree=folder.tree)
        ids = [work.id for work in self._work_of(folder)]
        await self._engine.transact(lambda draft: _end_waiting(draft, ids))
        self._release(folder)

    def _work_of(self, folder: Folder) -> list[Workload]:
        works = self._engine.mirror.workloads.values()
        return [work for work in works if work.program.tree and _folder_of(work) == folder]


def _folder_of(workload: Workload) -> Folder:
    return Folder(space_of(workload.user), workload.program.tree)


def _end_waiting(draft: Draft, workloads: Iterable[WorkloadId]) -> None:
    for workload_id in workloads:
        workload = draft.workload(workload_id)
        for replica in list(draft.replicas(workload_id)) if workload is not None else ():
            if workload is not None and replica.state is ReplicaState.PENDING:
                transitions.stop(draft, workload, replica, Reason.START_FAILED, sentence=gone().message)
