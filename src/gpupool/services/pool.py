"""The services of one pool, put together, and what goes on in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from gpupool.domain.access import DEFAULT_PROJECT, Project
from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.heads import Head, MemberKey
from gpupool.domain.windows import read_zone
from gpupool.services.access import AccessService
from gpupool.services.accounting import AccountingService
from gpupool.services.analytics import AnalyticsService
from gpupool.services.bookings import BookingService
from gpupool.services.bound import BoundClients
from gpupool.services.demand import Demand
from gpupool.services.departments import DepartmentService
from gpupool.services.engine import Engine
from gpupool.services.expiring import Expiring
from gpupool.services.files.away import FoldersAway
from gpupool.services.files.service import FileService
from gpupool.services.files.serving import HeadFiles, folders_in
from gpupool.services.foresight import MOST_KEPT
from gpupool.services.gpu_readings import GpuReadings
from gpupool.services.heads import Heads
from gpupool.services.history import HistoryService
from gpupool.services.identities import IdentityService
from gpupool.services.images import ImageService
from gpupool.services.joining import HeadFacts, JoinService
from gpupool.services.login_codes import LoginCodes
from gpupool.services.lookup import Lookup
from gpupool.services.loops import SchedulingLoop, Ticker
from gpupool.services.manifests import ManifestService
from gpupool.services.metrics.service import MetricsService
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
from gpupool.services.sessions import SessionService
from gpupool.services.submission import SubmissionService
from gpupool.services.telemetry import TelemetryService
from gpupool.services.warnings.service import WarningService
from gpupool.services.workloads import WorkloadService

FORGET_EVERY_S = 3600.0
DAY_S = 86400.0

log = structlog.get_logger("gpupool.pool")


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """What a pool says of itself; ``owner_uid`` is the account it runs as, ``kind`` is user or system.

    ``dashboard`` is where browsers of this machine find it (``http://127.0.0.1:8470``). ``own_node`` is the node on the
    control plane's own machine, if there is one; ``movable``: a control plane on another machine may take over, and
    ``term`` counts how often that has happened. ``head`` is this machine as a head of a cluster, ``database`` the URL
    of the database for others.
    """

    version: str
    pool_id: str
    kind: str
    started_at: float
    state_dir: str
    listen: str | None
    owner_uid: int
    retention_days: int = 90
    time_zone: str = "UTC"
    dashboard: str | None = None
    own_node: str = ""
    movable: bool = False
    term: int | None = None
    head: Head | None = None
    database: str | None = None


@dataclass(frozen=True, slots=True)
class PoolServices:
    """What the API calls."""

    info: PoolInfo
    workloads: WorkloadService
    access: AccessService
    sessions: SessionService
    identities: IdentityService
    nodes: NodeService
    joining: JoinService
    history: HistoryService
    policy: PolicyService
    plans: PlanService
    bookings: BookingService
    departments: DepartmentService
    accounting: AccountingService
    analytics: AnalyticsService
    telemetry: TelemetryService
    metrics: MetricsService
    warnings: WarningService
    files: FileService
    head_files: HeadFiles
    login_codes: LoginCodes
    images: ImageService
    manifests: ManifestService


class Pool:
    """All services over one set of ports, started and stopped together."""

    def __init__(self, ports: Ports, info: PoolInfo) -> None:
        self._ports = ports
        self._info = info
        self._mirror = Mirror()
        self._book = NodeBook("" if info.movable else info.own_node)
        self._register = Register()
        self._demand = Demand(self._mirror, self._book, ports.clock.now, read_zone(info.time_zone))
        specs = ProcessSpecs(self._book, as_user=info.kind == "system")
        specs.volume_roots = lambda project: self._register.project(project).rules.volumes
        self.engine = Engine(ports, self._mirror, self._demand, specs)
        self._bound = BoundClients(ports.clock.monotonic)
        self._observer = Observer(self.engine, self._book)
        self._tasks: list[asyncio.Task[None]] = []
        self.services = self._wire(info)

    def _wire(self, info: PoolInfo) -> PoolServices:
        permissions = Permissions(self._register)
        lookup = Lookup(self.engine)
        as_user = info.kind == "system"
        submission = SubmissionService(self.engine, self._register, permissions, lookup, as_user=as_user)
        files = FileService(self.engine, permissions, lookup)
        self._away = FoldersAway(self.engine, files)
        submission.check_files = files.check
        images = ImageService(self.engine, self._book, permissions, self._register)
        submission.check_containers = images.check
        telemetry = TelemetryService(self._ports, self._book, self._mirror)
        accounting = AccountingService(self.engine, self._register, permissions, info.time_zone)
        workloads = WorkloadService(self.engine, lookup, permissions, self._bound, submission)
        workloads.waiting.folder_away = self._away.explain
        access = AccessService(self.engine, self._register, permissions, info.owner_uid)
        sessions = SessionService(self.engine, self._register, access, info.owner_uid)
        metrics = MetricsService(self.engine, self._book, self._register, telemetry, accounting)
        nodes = NodeService(self.engine, self._book, permissions)
        return PoolServices(
            info=info,
            workloads=workloads,
            access=access,
            sessions=sessions,
            identities=IdentityService(self.engine, self._register, access, sessions, info.owner_uid),
            nodes=nodes,
            joining=JoinService(
                self.engine,
                permissions,
                nodes,
                HeadFacts(info.pool_id, info.listen),
                Heads(self.engine, info.head, info.database),
            ),
            history=HistoryService(self.engine),
            departments=DepartmentService(self.engine, self._register, permissions),
            accounting=accounting,
            analytics=AnalyticsService(self.engine, self._book, accounting, workloads.holdings),
            policy=PolicyService(self.engine, permissions),
            bookings=BookingService(self.engine, self._book, self._register, permissions),
            plans=PlanService(self.engine, self._register, submission, workloads.waiting),
            telemetry=telemetry,
            metrics=metrics,
            warnings=WarningService(
                self.engine, self._register, permissions, (info.pool_id, info.time_zone), metrics.counts.warnings
            ),
            files=files,
            head_files=HeadFiles(self._ports.blobs, self._members, lambda: folders_in(files.live())),
            login_codes=LoginCodes(access, self._ports.clock),
            images=images,
            manifests=ManifestService(self.engine, self._register, workloads),
        )

    async def _members(self) -> list[MemberKey]:
        heads = {head.name for head in await self._ports.store.joins.heads()}
        found = await self._ports.store.joins.members()
        return [MemberKey(member.node, member.secret_sha256, member.node in heads) for member in found]

    async def start(self) -> None:
        """Read the truth, connect to the nodes, begin to work."""
        state = await self._ports.store.load_live()
        self._mirror.load(state)
        self._register.load(state.projects, state.users, state.departments)
        self._book.load(state.nodes, self._ports.clock.monotonic())
        await self._ensure_default_project()
        self._demand.load(self._register.projects.values(), self._register.users.values(), state.departments)
        await self.services.policy.load()
        await self.services.warnings.load()
        await self.services.accounting.load()
        await self.services.sessions.load()
        await self.services.joining.heads.announce()
        self.services.bookings.load(state.bookings)
        await self._away.load()
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
            "schedule": SchedulingLoop(self.engine, self.services.metrics.counts.cycles.add).run(),
            "tick": Ticker(self.engine, self._bound).run(),
            "lost nodes": self.services.nodes.lost.run(),
            "read GPUs": GpuReadings(self.engine, self._book).run(),
            "foresee": waiting.foresight.run(waiting.why),
            "forget": self._forget_old(),
            "expire": Expiring(self.engine, self.services.workloads).run(),
            "telemetry": self.services.telemetry.run(),
            "forget use": self.services.telemetry.forget(),
            "account": self.services.accounting.run(),
            "metrics": self.services.metrics.run(),
            "warnings": self.services.warnings.run(),
            "sessions": self.services.sessions.run(),
            "bookings": self.services.bookings.run(),
            "files": self.services.files.run(),
            "folders of other heads": self._away.run(),
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
                        self._demand.dependencies.finished_states[found.id] = found.state

    async def _forget_old(self) -> None:
        while True:
            try:
                before = self._ports.clock.now() - self._info.retention_days * DAY_S
                # What was asked for is known from history: it stays until that is summed.
                before = min(before, await self._ports.store.usage_books.summed_until())
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
        await self.services.telemetry.close()
        await self.engine.close()
        await self._ports.fabric.close()
        await self._ports.store.close()
