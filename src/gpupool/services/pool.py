"""The services of one pool, connected to each other, and their background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.nodes.heads import Head
from gpupool.domain.people.access import DEFAULT_PROJECT, Project
from gpupool.domain.work.time_windows import read_zone
from gpupool.services.access.departments import DepartmentService
from gpupool.services.access.permissions import Permissions
from gpupool.services.access.saved_views import SavedViews
from gpupool.services.access.service import AccessService
from gpupool.services.access.sessions import SessionService
from gpupool.services.access.sign_in import IdentityService, LoginCodes
from gpupool.services.access.workspaces import WorkspaceAccess
from gpupool.services.backups.service import BackupService
from gpupool.services.cluster.heads import Heads
from gpupool.services.cluster.joining import HeadFacts, JoinService
from gpupool.services.control.adoption import Adoption, OtherPools
from gpupool.services.control.engine import Engine
from gpupool.services.control.lookup import Lookup
from gpupool.services.control.observer import Observer
from gpupool.services.control.scheduler_feed import SchedulerFeed
from gpupool.services.control.scheduling_loop import LimitChecker, SchedulingLoop
from gpupool.services.explain.estimates import MAX_ESTIMATES
from gpupool.services.explain.wait_reason import Obstacles, ResumptionNotices
from gpupool.services.files.missing import FolderRecovery, MissingFolders
from gpupool.services.files.serve import HeadFiles, folders_in
from gpupool.services.files.service import FileService
from gpupool.services.gpu_checks.service import GpuChecks
from gpupool.services.lifecycle.process_spec import ProcessSpecs
from gpupool.services.metrics.service import MetricsService
from gpupool.services.nodes.images import ImageService
from gpupool.services.nodes.mig_instances import MigInstanceService
from gpupool.services.nodes.monitoring import CapacityRecorder, GpuHealthMonitor
from gpupool.services.nodes.reservations import ReservationService
from gpupool.services.nodes.service import NodeService
from gpupool.services.policy import PolicyService
from gpupool.services.ports.adapters import Ports
from gpupool.services.refusals import Refusals
from gpupool.services.serving.controller import ServiceController
from gpupool.services.serving.open_ports import OpenPorts
from gpupool.services.serving.service import ServingService
from gpupool.services.state.client_binding import ClientBindings
from gpupool.services.state.gpu_hours import GpuHourBudgets
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.state.mirror import Mirror
from gpupool.services.state.node_registry import NodeRegistry
from gpupool.services.state.service_registry import ServiceRegistry
from gpupool.services.state.workspace_registry import WorkspaceRegistry
from gpupool.services.storage import StorageService
from gpupool.services.telemetry.service import TelemetryService
from gpupool.services.usage.accounting import AccountingService
from gpupool.services.usage.analytics import AnalyticsService
from gpupool.services.usage.budgets import BudgetReader
from gpupool.services.usage.events import EventService
from gpupool.services.warnings.service import WarningService
from gpupool.services.workloads.manifests import ManifestService
from gpupool.services.workloads.planning import PlanService
from gpupool.services.workloads.service import ExpiryLoop, WorkloadService
from gpupool.services.workloads.submission import SubmissionChecks, SubmissionService
from gpupool.services.workspaces.service import WorkspaceService

HISTORY_INTERVAL_S = 3600.0
DAY_S = 86400.0

log = structlog.get_logger("gpupool.pool")


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """Facts about a pool; ``owner_uid`` is the account that it runs as, ``kind`` is ``user`` or ``system``.

    ``dashboard`` is its address for browsers of this machine (``http://127.0.0.1:8470``). ``own_node`` is the node on
    the control plane's own machine, if there is one. ``movable``: a control plane on another machine may become the
    leader; ``term`` is the number of the present leadership. ``head`` is this machine as a head of a cluster,
    ``database`` the URL of the database for other heads, ``password_file`` and ``passfile`` the files with its password
    on this machine. ``address`` is the one that the administrator set for this machine (``--address``). ``others`` is
    the decision about programs of other pools on the nodes.
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
    address: str | None = None
    password_file: str | None = None
    passfile: str | None = None
    others: OtherPools = field(default_factory=OtherPools)


@dataclass(frozen=True, slots=True)
class PoolServices:
    """The services that the API and the pages call."""

    info: PoolInfo
    workloads: WorkloadService
    access: AccessService
    sessions: SessionService
    saved_views: SavedViews
    identities: IdentityService
    nodes: NodeService
    gpu_checks: GpuChecks
    joining: JoinService
    history: EventService
    policy: PolicyService
    backups: BackupService
    plans: PlanService
    reservations: ReservationService
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
    workspaces: WorkspaceService
    serving: ServingService
    open_ports: OpenPorts
    refusals: Refusals
    storage: StorageService


class Pool:
    """All services over one set of ports, started and stopped together."""

    def __init__(self, ports: Ports, info: PoolInfo) -> None:
        self._ports = ports
        self._info = info
        self._mirror = Mirror()
        self._nodes = NodeRegistry("" if info.movable else info.own_node)
        self._identities = IdentityCache()
        self._workspaces = WorkspaceRegistry(self._mirror)
        self._serving = ServiceRegistry()
        self._missing_folders = MissingFolders()
        zone = read_zone(info.time_zone)
        self._budgets = GpuHourBudgets(self._identities, zone)
        self._feed = SchedulerFeed(
            self._mirror, self._nodes, ports.clock.now, self._missing_folders.needed_by, self._budgets, zone
        )
        specs = ProcessSpecs(
            self._nodes,
            ports.store.records,
            info.pool_id,
            self._volume_roots,
            self._workspaces.image,
            as_user=info.kind == "system",
        )
        self.engine = Engine(ports, self._mirror, self._feed, specs)
        self._bound = ClientBindings(ports.clock.monotonic)
        adoption = Adoption(self.engine, self._identities, info.pool_id, info.others)
        self._observer = Observer(self.engine, self._nodes, adoption)
        self._tasks: list[asyncio.Task[None]] = []
        self.services = self._wire(info)

    def _volume_roots(self, project: str) -> tuple[str, ...]:
        return self._identities.project(project).rules.volumes

    def _wire(self, info: PoolInfo) -> PoolServices:
        permissions = Permissions(self._identities)
        lookup = Lookup(self.engine)
        as_user = info.kind == "system"
        files = FileService(self.engine, permissions, lookup, self._serving)
        self._recovery = FolderRecovery(self.engine, files, self._missing_folders)
        images = ImageService(self.engine, self._nodes, permissions, self._identities)
        workspace_access = WorkspaceAccess(self._workspaces, self._identities, permissions)
        submission = SubmissionService(
            self.engine,
            self._identities,
            permissions,
            lookup,
            SubmissionChecks(files.check, workspace_access, images.check),
            as_user=as_user,
        )
        telemetry = TelemetryService(self._ports, self._nodes, self._mirror)
        accounting = AccountingService(self.engine, self._identities, permissions, info.time_zone)
        self._mig_instances = MigInstanceService(self.engine, self._nodes)
        obstacles = Obstacles(self._recovery.explain, self._mig_instances.problem)
        workloads = WorkloadService(self.engine, lookup, permissions, self._bound, submission, obstacles)
        controller = ServiceController(self.engine, self._serving, self._nodes, submission)
        serving = ServingService(self.engine, self._serving, self._identities, permissions, submission, controller)
        access = AccessService(self.engine, self._identities, permissions, info.owner_uid, self._serving)
        sessions = SessionService(self.engine, self._identities, access, info.owner_uid)
        metrics = MetricsService(self.engine, self._nodes, self._identities, telemetry, accounting)
        nodes = NodeService(self.engine, self._nodes, permissions, self._workspaces)
        policy = PolicyService(self.engine, permissions)
        gpu_checks = GpuChecks(
            self.engine,
            self._nodes,
            self._identities,
            nodes,
            access,
            submission,
            workloads.output,
            lambda: policy.policy,
            info.owner_uid,
        )
        heads = Heads(self.engine, info.head, info.database)
        joining = JoinService(
            self.engine,
            permissions,
            nodes,
            HeadFacts(info.pool_id, info.listen, info.password_file, info.passfile),
            access,
            heads,
        )
        return PoolServices(
            info=info,
            workloads=workloads,
            access=access,
            sessions=sessions,
            saved_views=SavedViews(self.engine),
            identities=IdentityService(self.engine, self._identities, access, sessions, info.owner_uid),
            nodes=nodes,
            gpu_checks=gpu_checks,
            joining=joining,
            history=EventService(self.engine, permissions),
            departments=DepartmentService(self.engine, self._identities, permissions),
            accounting=accounting,
            analytics=AnalyticsService(self.engine, self._nodes, accounting, workloads.current_leases),
            policy=policy,
            backups=BackupService(self.engine, permissions, info.state_dir),
            reservations=ReservationService(self.engine, self._nodes, self._identities, permissions),
            plans=PlanService(self.engine, self._identities, submission, workloads.wait_reasons),
            telemetry=telemetry,
            metrics=metrics,
            warnings=WarningService(
                self.engine,
                self._identities,
                self._workspaces,
                self._serving,
                permissions,
                (info.pool_id, info.time_zone),
                metrics.counts.warnings,
            ),
            files=files,
            head_files=HeadFiles(self._ports.blobs, joining.membership, lambda: folders_in(files.live())),
            login_codes=LoginCodes(access, self._ports.clock),
            images=images,
            manifests=ManifestService(self.engine, self._identities, workloads, serving),
            serving=serving,
            open_ports=OpenPorts(self.engine, self._identities, permissions, files, controller, info.owner_uid),
            workspaces=WorkspaceService(self.engine, self._nodes, workspace_access, workloads, as_user=as_user),
            refusals=Refusals(self._ports.clock.monotonic),
            storage=StorageService(self.engine, self._workspaces),
        )

    async def start(self) -> None:
        """Load the database, connect to the nodes, and start the background tasks."""
        state = await self._ports.store.load_live()
        self._mirror.load(state)
        self._workspaces.load(state.workspaces)
        self._serving.load(state.services)
        self._identities.load(state.projects, state.users, state.departments)
        self._nodes.load(state.nodes, self._ports.clock.monotonic())
        await self._ensure_default_project()
        self._feed.load(self._identities.projects.values(), self._identities.users.values(), state.departments)
        await self.services.policy.load()
        await self.services.gpu_checks.load()
        await self.services.warnings.load()
        await self.services.backups.load()
        await self.services.accounting.load()
        await self.services.sessions.load()
        await self.services.serving.controller.load()
        await self.services.joining.heads.announce()
        self.services.reservations.load(state.reservations)
        await self._recovery.load()
        for workload in self._mirror.workloads.values():
            await self.services.workloads.submission.note_dependencies(workload)
        await self._ports.fabric.start()
        for name, work in self._background().items():
            self._tasks.append(asyncio.create_task(work, name=name))
        self.engine.work.set()
        log.info("started", workloads=len(state.workloads), leases=len(state.leases), nodes=len(state.nodes))

    def _background(self) -> dict[str, Coroutine[Any, Any, None]]:
        reasons = self.services.workloads.wait_reasons
        return {
            "listen": self._observer.listen(),
            "observe": self._observer.work(),
            "schedule": SchedulingLoop(
                self.engine, self.services.metrics.counts.cycles.add, lambda: self.services.gpu_checks.yielding
            ).run(),
            "check idle GPUs": self.services.gpu_checks.run(),
            "tick": LimitChecker(self.engine, self._bound).run(),
            "lost nodes": self.services.nodes.lost.run(),
            "MIG instances": self._mig_instances.run(),
            "read GPUs": GpuHealthMonitor(self.engine, self._nodes).run(),
            "record capacity": CapacityRecorder(self.engine, self._nodes).run(),
            "estimates": reasons.estimates.run(reasons.why),
            "delete history": self._delete_history(),
            "expire": ExpiryLoop(self.engine, self.services.workloads).run(),
            "telemetry": self.services.telemetry.run(),
            "delete samples": self.services.telemetry.forget(),
            "account": self.services.accounting.run(),
            "budgets": BudgetReader(self.engine, self.services.accounting, self._budgets).run(),
            "metrics": self.services.metrics.run(),
            "warnings": self.services.warnings.run(),
            "sessions": self.services.sessions.run(),
            "unrecorded stops": self.services.workloads.unrecorded_stops.run(),
            "reservations": self.services.reservations.run(),
            "backups": self.services.backups.run(),
            "files": self.services.files.run(),
            "folders of other heads": self._recovery.run(),
            "workspace tasks": self.services.workspaces.tasks.run(),
            "measure workspaces": self.services.workspaces.meter.run(),
            "services": self.services.serving.run(self.services.open_ports.routes),
            "gateway": self.services.serving.talk(),
            "service estimates": self.services.serving.estimate(reasons.why),
            "heads": self.services.joining.heads.run(),
            "resume": ResumptionNotices(self.engine, reasons).run(),
        }

    async def _ensure_default_project(self) -> None:
        if DEFAULT_PROJECT in self._identities.projects:
            return
        project = Project(DEFAULT_PROJECT, note="everybody's")
        event = Event(self._ports.clock.now(), "pool", Reason.CHANGED, "created", target=f"project {DEFAULT_PROJECT}")
        await self._ports.store.projects.save(project, event)
        self._identities.projects[DEFAULT_PROJECT] = project

    async def _delete_history(self) -> None:
        while True:
            try:
                before = self._ports.clock.now() - self._info.retention_days * DAY_S
                # Usage is computed from history, so history stays until it is summed.
                before = min(before, await self._ports.store.usage_books.summed_until())
                while await self._ports.store.delete_finished_before(before):
                    await self._ports.sleep(0.1)
                await self._ports.store.estimates.forget(before, MAX_ESTIMATES)
            except GpupoolError as error:
                log.warning("could not delete old history", code=error.code)
            await self._ports.sleep(HISTORY_INTERVAL_S)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set; raises the error of a background task, or that this process must stop."""
        stopped = asyncio.create_task(stop.wait())
        waiting: set[asyncio.Future[Any]] = {stopped, self.engine.broken, *self._tasks}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done - {stopped}:
                future.result()
        finally:
            stopped.cancel()

    async def close(self) -> None:
        """Stop the background tasks; programs on nodes continue to run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.services.telemetry.close()
        await self.engine.close()
        await self._ports.fabric.close()
        await self._ports.store.close()
