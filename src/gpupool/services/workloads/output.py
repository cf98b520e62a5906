"""The output of programs: read it from the node that has it, and attach to a running program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import AttemptKey
from gpupool.domain.people.access import Actor
from gpupool.domain.protocol.log_records import LogBatch, skips_segments
from gpupool.domain.work.workload import ReplicaState, Workload
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.engine import Engine
from gpupool.services.control.lookup import Lookup
from gpupool.services.ports.fabric import AttachStream, NodeLink


class OutputPage(NamedTuple):
    """Output from a cursor.

    ``end``: the attempt has ended, and no more output follows. ``dropped``: older output after the cursor was deleted.
    ``full``: it has as much as was asked for; otherwise it is all output up to now.
    """

    batches: Sequence[LogBatch]
    cursor: str  # after the output
    end: bool
    dropped: bool = False
    full: bool = False


class OutputService:
    """Reads logs from the node that has them."""

    def __init__(self, engine: Engine, lookup: Lookup, permissions: Permissions) -> None:
        self._engine = engine
        self._lookup = lookup
        self._permissions = permissions

    async def read(
        self, actor: Actor, ref: str, *, index: int, attempt: int | None, cursor: str, limit: int
    ) -> OutputPage:
        """Return output from a cursor."""
        workload = await self._seen(actor, ref)
        found = await self._find(workload, index, attempt)
        if found is None:
            return OutputPage((), cursor, workload.state.final)
        key, link, live = found
        try:
            batches = await link.read_log(key, cursor, limit)
        except GpupoolError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            return OutputPage((), cursor, not live, dropped=not live)
        if not batches:
            return OutputPage((), cursor, not live)
        dropped = skips_segments(cursor, batches[0].cursor)
        full = sum(len(batch.data) for batch in batches) >= limit
        return OutputPage(batches, batches[-1].cursor, end=False, dropped=dropped, full=full)

    async def tail_cursor(self, actor: Actor, ref: str, *, index: int, attempt: int | None, lines: int) -> str:
        """Return the cursor that is about ``lines`` lines before the end."""
        found = await self._find(await self._seen(actor, ref), index, attempt)
        if found is None:
            return ""
        key, link, _ = found
        return await link.tail_log(key, lines)

    async def _seen(self, actor: Actor, ref: str) -> Workload:
        workload = await self._lookup.workload(actor, ref)
        self._permissions.need_see(actor, workload)
        return workload

    async def _find(
        self, workload: Workload, index: int, attempt: int | None
    ) -> tuple[AttemptKey, NodeLink, bool] | None:
        """Return the attempt's key, the link of its node, and True if it runs; None before the first start."""
        replica = await self._lookup.replica(workload, index)
        wanted = replica.attempt if attempt is None else attempt
        if wanted > replica.attempt:
            raise GpupoolError(
                ErrorCode.NOT_FOUND,
                f"{workload.name} has been started {replica.attempt} times.",
                "Give a smaller attempt.",
            )
        node = await self._lookup.node_of(workload, replica, wanted)
        if wanted < 1 or node is None:
            return None
        live = wanted == replica.attempt and replica.state.placed
        return workload.key(index, wanted), self._engine.ports.fabric.link(node), live

    async def wait_for_more(self, timeout_s: float) -> None:
        """Wait a little before the next read of output: nodes do not announce output, so a follower polls."""
        await self._engine.ports.sleep(min(timeout_s, 0.2))

    async def attach(self, actor: Actor, ref: str, index: int) -> AttachStream:
        """Open a stream to the shepherd of a running program."""
        workload = await self._lookup.workload(actor, ref)
        self._permissions.need_manage(actor, workload)
        replica = await self._lookup.replica(workload, index)
        if replica.state not in {ReplicaState.STARTING, ReplicaState.RUNNING, ReplicaState.STOPPING}:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, f"{workload.name} is {replica.state}, not running.", "See `gpupool why`."
            )
        return await self._engine.ports.fabric.link(replica.node or "").attach(replica.key)
