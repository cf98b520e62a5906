"""Work on nodes that do not answer: given up once it is certain that nothing of it is left there, or when told so.

A node that is out of contact may still run its programs, so their leases stay. Of those that the node ends by itself
after a while (``Lease.fence_after_s``) it is certain some time later; for the rest somebody has to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.supervision import FENCE_GRACE_S, ExitReason, ExitReport
from gpupool.domain.units import format_duration
from gpupool.domain.workload import Lease, Replica, WorkloadKind
from gpupool.services import transitions
from gpupool.services.engine import Engine
from gpupool.services.mirror import Draft, ReplicaId
from gpupool.services.nodebook import NodeBook

EVERY_S = 1.0
MARGIN_S = 15.0  # for what a node needs to notice, to kill and to be wrong about the time

log = structlog.get_logger("gpupool.lost_nodes")


class LostNodes:
    """Looks once a second; ``give_up`` does at once what an administrator asks for."""

    def __init__(self, engine: Engine, nodes: NodeBook) -> None:
        self._engine = engine
        self._nodes = nodes

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            now = self._engine.ports.clock.monotonic()
            for name, silent_s in self._nodes.silent(now).items():
                try:
                    await self._look_at(name, silent_s)
                except GpupoolError as error:
                    log.warning("lost work not given up", node=name, code=error.code)

    async def _look_at(self, name: str, silent_s: float) -> None:
        over = [key for key in self._engine.mirror.placed.get(name, ()) if self._certain(key, silent_s)]
        if over:
            log.warning("node is lost", node=name, silent_s=round(silent_s), replicas=len(over))
            why = f"{name} has not answered for {format_duration(silent_s)}"
            await self._engine.transact(lambda draft: _end(draft, over, why))

    def _certain(self, key: ReplicaId, silent_s: float) -> bool:
        """Whether the node has surely ended it: its fence, the grace of a fence and a margin have passed."""
        lease = self._lease_of(self._engine.mirror.replica(*key))
        if lease is None or lease.fence_after_s is None:
            return False
        return silent_s > certain_after_s(lease.fence_after_s)

    def _lease_of(self, replica: Replica | None) -> Lease | None:
        if replica is None or replica.lease is None:
            return None
        return self._engine.mirror.leases.get(replica.lease)

    async def give_up(self, name: str, why: str) -> int:
        """End everything that is placed on a node, as lost; how much that was."""
        keys = list(self._engine.mirror.placed.get(name, ()))
        await self._engine.transact(lambda draft: _end(draft, keys, why))
        return len(keys)


def certain_after_s(fence_after_s: float) -> float:
    """How long a node has to be silent until a fence has surely done its work: a clock may be wrong by a hundredth."""
    return fence_after_s * 1.01 + FENCE_GRACE_S + MARGIN_S


def _end(draft: Draft, keys: Iterable[ReplicaId], why: str) -> None:
    """Programs on leases of others go first: then nothing is left that anybody would have to stop."""

    def is_program_on_lease(key: ReplicaId) -> bool:
        owner = draft.workload(key[0])
        return owner is not None and owner.kind is WorkloadKind.EXEC

    for key in sorted(keys, key=lambda key: (not is_program_on_lease(key), key)):
        workload, replica = draft.workload(key[0]), draft.replica(*key)
        if workload is not None and replica is not None and replica.state.placed:
            report = ExitReport(ExitReason.NODE_LOST, None, None, why, draft.now)
            transitions.end(draft, workload, replica, report)
