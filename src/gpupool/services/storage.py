"""Disk use of the pool on the machine of its control plane, by kind of file and by user."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.people.access import Actor, Role
from gpupool.services.access.permissions import require_role
from gpupool.services.control.engine import Engine
from gpupool.services.ports.storage import Storage
from gpupool.services.state.workspace_registry import WorkspaceRegistry

REUSED_S = 60.0  # a result is returned again for this time: reading all folders may take minutes


@dataclass(frozen=True, slots=True)
class UserStorage:
    """The bytes of a user's files; ``user`` is empty for files of deleted workloads and workspaces."""

    user: str
    bytes: int
    files: tuple[tuple[str, int], ...]  # kind and bytes


@dataclass(frozen=True, slots=True)
class StorageReport:
    """The files by kind and by user (largest first) at a time."""

    at: float
    storage: Storage
    users: Sequence[UserStorage]


class StorageService:
    """Reads the folders in a thread, one request at a time."""

    def __init__(self, engine: Engine, workspaces: WorkspaceRegistry) -> None:
        self._engine = engine
        self._workspaces = workspaces
        self._turn = asyncio.Lock()
        self._last: StorageReport | None = None

    async def report(self, actor: Actor) -> StorageReport:
        """Return the disk use, at most ``REUSED_S`` old. Raises FORBIDDEN, UNSUPPORTED, NOT_FOUND."""
        require_role(actor, Role.ADMIN)
        reader = self._engine.ports.storage
        if reader is None:
            raise GpupoolError(ErrorCode.UNSUPPORTED, "This pool has no folders.", "See 'gpupool status'.")
        async with self._turn:
            now = self._engine.ports.clock.now()
            if self._last is None or now - self._last.at > REUSED_S:
                try:
                    found = await asyncio.to_thread(reader.read)
                except OSError as error:
                    raise GpupoolError(
                        ErrorCode.NOT_FOUND, f"The folders cannot be read: {error.strerror}.", "See 'gpupool doctor'."
                    ) from error
                self._last = StorageReport(now, found, await self._by_user(found))
            return self._last

    async def _by_user(self, found: Storage) -> Sequence[UserStorage]:
        owners: dict[str, str] = {row.id: row.user for row in self._workspaces.rows.values()}
        kinds: dict[str, Counter[str]] = {}
        for files in found.files:
            for name, size in files.by_id:
                if name not in owners:
                    owners[name] = await self._owner(WorkloadId(name))
                kinds.setdefault(owners[name], Counter())[files.what] += size
        rows = [UserStorage(user, sum(by.values()), tuple(by.most_common())) for user, by in kinds.items()]
        return sorted(rows, key=lambda row: (-row.bytes, row.user))

    async def _owner(self, name: WorkloadId) -> str:
        row = self._engine.mirror.workloads.get(name) or await self._engine.ports.store.get_workload(name)
        return "" if row is None else row.user
