"""MIG instances on demand: created for queued requests, removed when they are not used.

The label ``mig=on-demand`` of a node allows this. Each second the queued requests for MIG instances are looked at in
scheduling order. The wait rules decide: a replica that nothing but the missing instance keeps waiting has the code
``MIG_INSTANCE``, so held work and work over a quota gets none. A node has one request at a time. When it reports the
new instance, the scheduler grants it like any GPU.

Before an instance is removed it is hidden from the scheduler, in the lock of all writes: no lease can be granted on it
while the node destroys it. The node itself checks that no process uses it, and destroys only instances of the pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.nodes.gpu import Gpu, Node, NodeReport, NodeState, mentions_mig
from gpupool.domain.units import format_duration
from gpupool.domain.work.lifecycle import POOL
from gpupool.scheduling.explain.wait_reason import WaitCode
from gpupool.scheduling.placement.mig_sites import MigSite, mig_sites
from gpupool.scheduling.state.queue import Group
from gpupool.services.control.engine import Engine
from gpupool.services.ports.fabric import NOT_SENT
from gpupool.services.state.node_registry import NodeRegistry

INTERVAL_S = 1.0
KEEP_S = 300.0  # an unused instance stays for the next request
READ_INTERVAL_S = 30.0  # of the room on cards, which administrators may change
MIN_RETRY_DELAY_S = 10.0
MAX_RETRY_DELAY_S = 600.0
MAX_EXPLAINED = 32  # kinds of requests each second

log = structlog.get_logger("gpupool.mig")


@dataclass(frozen=True, slots=True)
class LastError:
    """The last error of a node, and until when it is left alone."""

    sentence: str
    delay_s: float
    until: float


class MigInstanceService:
    """Creates and removes MIG instances on the nodes that allow it."""

    def __init__(self, engine: Engine, registry: NodeRegistry) -> None:
        self._engine = engine
        self._registry = registry
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by node
        self._errors: dict[str, LastError] = {}
        self._unused_since: dict[str, float] = {}  # by UUID
        self._read_at: dict[str, float] = {}  # by node

    async def run(self) -> None:
        """Run for ever."""
        try:
            while True:
                await self._engine.ports.sleep(INTERVAL_S)
                try:
                    self.step()
                except GpupoolError as error:
                    log.warning("MIG instances not examined", code=error.code, message=error.message)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def problem(self, node: str) -> str:
        """Return a clause about the last error of a node; empty without one."""
        last = self._errors.get(node)
        if last is None:
            return ""
        left_s = last.until - self._now()
        again = f"tried again in {format_duration(left_s)}" if left_s > 0 else "tried again now"
        return f"the last try failed: {last.sentence.rstrip('.')}; {again}"

    def step(self) -> None:
        """Start what is to be done on each node that has no request in progress."""
        self._tasks = {name: task for name, task in self._tasks.items() if not task.done()}
        nodes = [node for node in self._registry.all() if node.state is not NodeState.DOWN]
        nodes = [node for node in nodes if node.creates_mig or any(gpu.on_demand for gpu in node.report.gpus)]
        self._note_use(nodes)
        if any(node.creates_mig and self._free(node.name) for node in nodes):
            for site in self._wanted():
                self._start(site.node.name, self._prepare(site))
        for node in nodes:
            unused = [gpu for gpu in node.report.gpus if self._expired(node, gpu)]
            if unused and self._free(node.name):
                self._start(node.name, self._remove(node, unused, "unused"))
            elif self._free(node.name) and self._now() - self._read_at.get(node.name, -inf) >= READ_INTERVAL_S:
                self._start(node.name, self._read(node.name))

    def _now(self) -> float:
        return self._engine.ports.clock.monotonic()

    def _free(self, node: str) -> bool:
        last = self._errors.get(node)
        return node not in self._tasks and (last is None or last.until <= self._now())

    def _start(self, node: str, work: Awaitable[None]) -> None:
        self._tasks[node] = asyncio.ensure_future(self._guarded(node, work))

    # -- what is wanted ----------------------------------------------------------------------------------------------

    def _wanted(self) -> Iterator[MigSite]:
        """Yield a site for each kind of request that waits for an instance only, in scheduling order."""
        scheduler, now = self._engine.feed.scheduler, self._engine.ports.clock.now()
        groups = [group for group in scheduler.demand.groups() if _for_mig(group)]
        explained = 0
        for group in sorted(groups, key=self._order(now)) if groups else ():
            sites = [site for site in mig_sites(scheduler.cluster, group.shape) if self._free(site.node.name)]
            if sites and explained < MAX_EXPLAINED:
                explained += 1
                found = scheduler.explain(group.entries[0][2].key, now, foretell=False)
                if found is not None and found.code is WaitCode.MIG_INSTANCE:
                    yield sites[0]

    def _order(self, now: float) -> Callable[[Group], tuple[int, int, float, int]]:
        standings = self._engine.feed.scheduler.share_report(now).projects
        turn = {standing.project: standing.position for standing in standings}

        def place(group: Group) -> tuple[int, int, float, int]:
            at, arrival, replica = group.entries[0]
            return turn.get(replica.project, 0), -group.priority, at, arrival

        return place

    def _note_use(self, nodes: Sequence[Node]) -> None:
        now, held = self._now(), self._held()
        unused = [gpu.uuid for node in nodes for gpu in node.report.gpus if gpu.on_demand and gpu.uuid not in held]
        self._unused_since = {uuid: self._unused_since.get(uuid, now) for uuid in unused}

    def _held(self) -> set[str]:
        return {share.gpu_uuid for lease in self._engine.mirror.leases.values() for share in lease.shares}

    def _expired(self, node: Node, gpu: Gpu) -> bool:
        """Return whether an instance is to be removed: unused for long, or no longer allowed."""
        since = self._unused_since.get(gpu.uuid)
        keep_s = KEEP_S if node.creates_mig else 0.0
        return since is not None and not gpu.foreign and self._now() - since >= keep_s

    # -- changes -----------------------------------------------------------------------------------------------------

    async def _guarded(self, node: str, work: Awaitable[None]) -> None:
        """Do the work; after an error the node is left alone for longer each time."""
        try:
            await work
        except GpupoolError as error:
            await self._failed(node, error)
        except Exception:
            log.exception("MIG instances not changed", node=node)
        else:
            self._errors.pop(node, None)

    async def _failed(self, node: str, error: GpupoolError) -> None:
        before = self._errors.get(node)
        delay_s = MIN_RETRY_DELAY_S
        if before is not None and error.code not in NOT_SENT:
            delay_s = min(before.delay_s * 2, MAX_RETRY_DELAY_S)
        self._errors[node] = LastError(error.message, delay_s, self._now() + delay_s)
        log.warning("MIG instances not changed", node=node, code=error.code, message=error.message)
        if error.code in NOT_SENT:
            return
        event = self._engine.change_event(POOL, error.message, f"node {node}", Reason.NODE_WARNING)
        try:
            if before is None or before.sentence != error.message:
                await self._engine.transact(lambda draft: draft.note(event))
            await self._read(node)
        except GpupoolError as failure:
            log.warning("MIG instances not read", node=node, code=failure.code)

    async def _read(self, node: str) -> None:
        """Read a node again: an administrator may have changed its instances."""
        await self._take(await self._engine.ports.fabric.link(node).report(), "")

    async def _prepare(self, site: MigSite) -> None:
        """Create an instance, or make room for it; the next step then creates it."""
        if not site.ready:
            await self._remove(site.node, site.removable, f"to make room for {site.profile.name}")
            return
        link = self._engine.ports.fabric.link(site.node.name)
        report = await link.create_mig_instance(site.card.uuid, site.profile.name)
        await self._take(report, f"MIG instance {site.profile.name} created on GPU {site.card.index}")

    async def _remove(self, node: Node, gpus: Sequence[Gpu], why: str) -> None:
        """Destroy instances, each hidden from the scheduler before; those that were granted meanwhile stay."""
        for gpu in gpus:
            if not await self._engine.run_exclusive(partial(self._hide, node.name, gpu)):
                continue
            try:
                report = await self._engine.ports.fabric.link(node.name).remove_mig_instance(gpu.uuid)
            finally:
                self._registry.hidden.discard(gpu.uuid)
            cards = {card.uuid: f"GPU {card.index}" for card in node.report.mig_cards}
            where = cards.get(gpu.parent_uuid, gpu.parent_uuid)
            await self._take(report, f"MIG instance {gpu.mig_profile} removed from {where}: {why}")

    async def _hide(self, node: str, gpu: Gpu) -> bool:
        """Take an instance from the scheduler, in the lock of all writes; return False if it is held."""
        if gpu.uuid in self._held():
            return False
        self._registry.hidden.add(gpu.uuid)
        now = self._registry.get(node)
        self._registry.gpus_read(node, now.report.gpus)
        self._engine.feed.node_changed(self._registry.get(node))
        return True

    async def _take(self, report: NodeReport, what: str) -> None:
        """Use the GPUs and cards of a new report, unless the node is gone meanwhile; ``what`` becomes an event."""
        name = report.name
        self._read_at[name] = self._now()
        events = [self._engine.change_event(POOL, what, f"node {name}")] if what else []

        def now() -> tuple[Node, bool] | None:
            old = self._registry.find(name)
            if old is None or old.state is NodeState.DOWN:
                return None
            mine = replace(old.report, gpus=report.gpus, mig_cards=report.mig_cards, sharing=report.sharing)
            return self._registry.seen(mine)

        async def save() -> None:
            if (found := now()) is not None and (found[1] or events):
                await self._engine.ports.store.save_nodes([found[0]], events)
            if (found := now()) is not None and (found[1] or events):  # it may have changed during the write
                self._registry.put(found[0])
                self._engine.feed.node_changed(found[0])
                self._engine.work.set()

        await self._engine.run_exclusive(save)


def _for_mig(group: Group) -> bool:
    return group.gang is None and bool(group.entries) and any(map(mentions_mig, group.shape.request.models))
