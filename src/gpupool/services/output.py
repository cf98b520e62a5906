"""The output of programs, and streams to those that run."""

from __future__ import annotations

from collections.abc import Sequence

from gpupool.domain.access import Actor
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import AttemptKey
from gpupool.domain.logrecords import Stretch
from gpupool.domain.workload import ReplicaState, Workload
from gpupool.services.engine import Engine
from gpupool.services.lookup import Lookup
from gpupool.services.permissions import Permissions
from gpupool.services.ports import AttachStream, NodeLink


class OutputService:
    """Reads logs through the node that has them."""

    def __init__(self, engine: Engine, lookup: Lookup, permissions: Permissions) -> None:
        self._engine = engine
        self._lookup = lookup
        self._permissions = permissions

    async def read(
        self, actor: Actor, ref: str, *, index: int, attempt: int | None, cursor: str, limit: int
    ) -> tuple[Sequence[Stretch], str, bool]:
        """Output from a cursor, the cursor after it, and whether nothing more can come."""
        workload = await self._seen(actor, ref)
        found = await self._find(workload, index, attempt)
        if found is None:
            return (), cursor, workload.state.final
        key, link, live = found
        stretches = await link.read_log(key, cursor, limit)
        after = stretches[-1].cursor if stretches else cursor
        return stretches, after, not live and not stretches

    async def tail_cursor(self, actor: Actor, ref: str, *, index: int, attempt: int | None, lines: int) -> str:
        """The cursor from which about so many lines follow."""
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
        """The attempt's key, the link of its node, and whether it still runs; None before the first start."""
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

    async def changed(self, ref: str, timeout_s: float) -> None:
        """Sleep a little, or until something happens to the workload: there may be more output then."""
        del ref  # nodes do not announce output; a short sleep between reads is what following costs
        await self._engine.ports.sleep(min(timeout_s, 0.2))

    async def attach(self, actor: Actor, ref: str, index: int) -> AttachStream:
        """A stream to a running program's shepherd."""
        workload = await self._lookup.workload(actor, ref)
        self._permissions.need_manage(actor, workload)
        replica = await self._lookup.replica(workload, index)
        if replica.state not in {ReplicaState.STARTING, ReplicaState.RUNNING, ReplicaState.STOPPING}:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, f"{workload.name} is {replica.state}, not running.", "See `gpupool why`."
            )
        return await self._engine.ports.fabric.link(replica.node or "").attach(replica.key)
