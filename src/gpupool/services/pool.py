"""The services of one pool, put together, and what goes on in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from gpupool.domain.access import DEFAULT_PROJECT, Project
from gpupool.domain.errors import GpupoolError
from gpupool.domain.windows import read_zone
from gpupool.domain.workload import Event, Reason
from gpupool.services.access import AccessService
from gpupool.services.bookings import BookingService
from gpupool.services.bound import BoundClients
from gpupool.services.demand import Demand
from gpupool.services.departments import DepartmentService
from gpupool.services.engine import Engine
from gpupool.services.foresight import MOST_KEPT
from gpupool.services.history import HistoryService
from gpupool.services.lookup import Lookup
from gpupool.services.loops import SchedulingLoop, Ticker
from gpupool.services.mirror import Mirror
from gpupool.services.nodebook import NodeBook
from gpupool.services.nodes import NodeService
from gpupool.services.observer import Observer
from gpupool.services.permissions import Permissions
from gpupool.services.planning import PlanService
from gpupool.services.policy import PolicyService
from gpupool.services.ports import Ports
from gpupool.services.process_spec import ProcessSpecs
from gpupool.services.register import Register
from gpupool.services.resuming import Resuming
from gpupool.services.submission import SubmissionService
from gpupool.services.workloads import WorkloadService

FORGET_EVERY_S = 3600.0
DAY_S = 86400.0

log = structlog.get_logger("gpupool.pool")


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """What a pool says of itself; ``owner_uid`` is the account it runs as, ``kind`` is user or system."""

    version: str
    pool_id: str
    kind: str
    started_at: float
    state_dir: str
    listen: str | None
    owner_uid: int
    retention_days: int = 90
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class PoolServices:
    """What the API calls."""

    info: PoolInfo
    workloads: WorkloadService
    access: AccessService
    nodes: NodeService
    history: HistoryService
    policy: PolicyService
    plans: PlanService
    bookings: BookingService
    departments: DepartmentService


class Pool:
    """All services over one set of ports, started and stopped together."""

    def __init__(self, ports: Ports, info: PoolInfo) -> None:
        self._ports = ports
        self._info = info
        self._mirror = Mirror()
        self._book = NodeBook()
        self._register = Register()
        self._demand = Demand(self._mirror, self._book, ports.clock.now, read_zone(info.time_zone))
        self.engine = Engine(ports, self._mirror, self._demand, ProcessSpecs(self._book, as_user=info.kind == "system"))
        self._bound = BoundClients(ports.clock.monotonic)
        self._observer = Observer(self.engine, self._book)
        self._tasks: list[asyncio.Task[None]] = []
        self.services = self._wire(info)

    def _wire(self, info: PoolInfo) -> PoolServices:
        permissions = Permissions(self._register)
        lookup = Lookup(self.engine)
        submission = SubmissionService(self.engine, self._register, permissions, lookup)
        workloads = WorkloadService(self.engine, lookup, permissions, self._bound, submission)
        return PoolServices(
            info=info,
            workloads=workloads,
            access=AccessService(self.engine, self._register, permissions, info.owner_uid),
            nodes=NodeService(self.engine, self._book, permissions),
            history=HistoryService(self.engine),
            departments=DepartmentService(self.engine, self._register, permissions),
            policy=PolicyService(self.engine, permissions),
            bookings=BookingService(self.engine, self._book, self._register, permissions),
            plans=PlanService(self.engine, self._register, submission, workloads.waiting),
        )

    async def start(self) -> None:
        """Read the truth, connect to the nodes, begin to work."""
        state = await self._ports.store.load_live()
        self._mirror.load(state)
        self._register.load(state.projects, state.users, state.departments)
        for node in state.nodes:
            self._book.put(node)
        await self._ensure_default_project()
        self._demand.load(self._register.projects.values(), self._register.users.values(), state.departments)
        await self.services.policy.load()
        self.services.bookings.load(state.bookings)
        await self._remember_dependencies()
        await self._ports.fabric.start()
        for name, work in self._background().items():
            self._tasks.append(asyncio.create_task(work, name=name))
        self.engine.work.set()
        log.info("started", workloads=len(state.workloads), leases=len(state.leases), nodes=len(state.nodes))

    def _background(self) -> dict[str, Coroutine[Any, Any, None]]:
        waiting = self.services.workloads.waiting
        return {
            "listen": self._observer.listen(),
            "observe": self._observer.work(),
            "schedule": SchedulingLoop(self.engine).run(),
            "tick": Ticker(self.engine, self._book, self._bound).run(),
            "foresee": waiting.foresight.run(waiting.why),
            "forget": self._forget_old(),
            "bookings": self.services.bookings.run(),
            "resume": Resuming(self.engine, self.services.workloads.waiting).run(),
        }

    async def _ensure_default_project(self) -> None:
        if DEFAULT_PROJECT in self._register.projects:
            return
        project = Project(DEFAULT_PROJECT, note="everybody's")
        event = Event(self._ports.clock.now(), "pool", Reason.CHANGED, "created", target=f"project {DEFAULT_PROJECT}")
        await self._ports.store.save_project(project, event)
        self._register.projects[DEFAULT_PROJECT] = project

    async def _remember_dependencies(self) -> None:
        """How workloads ended that others still wait for."""
        for workload in self._mirror.workloads.values():
            for dependency in workload.after:
                if dependency.workload not in self._mirror.workloads:
                    found = await self._ports.store.get_workload(dependency.workload)
                    if found is not None:
                        self._demand.finished_states[found.id] = found.state

    async def _forget_old(self) -> None:
        while True:
            try:
                before = self._ports.clock.now() - self._info.retention_days * DAY_S
                while await self._ports.store.delete_finished_before(before):
                    await self._ports.sleep(0.1)
                await self._ports.store.forget_estimates(before, MOST_KEPT)
            except GpupoolError as error:
                log.warning("could not forget old history", code=error.code)
            await self._ports.sleep(FORGET_EVERY_S)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; raises what broke a background task or the right to go on."""
        stopped = asyncio.create_task(stop.wait())
        waiting: set[asyncio.Future[Any]] = {stopped, self.engine.broken, *self._tasks}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done - {stopped}:
                future.result()
        finally:
            stopped.cancel()

    async def close(self) -> None:
        """Stop working; what runs on nodes runs on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engine.close()
        await self._ports.fabric.close()
        await self._ports.store.close()
