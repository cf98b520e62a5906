"""Submission of workloads: check the rights of the user, check that the workload can ever start, and store it once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import ID_BITS, WorkloadId, workload_id
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.nodes.sharing import ComputePolicy
from gpupool.domain.people.access import DEFAULT_PROJECT, Actor, Role
from gpupool.domain.units import format_permille
from gpupool.domain.work import lifecycle
from gpupool.domain.work.gang import Gang
from gpupool.domain.work.rules import check_replica_gpus, resolve_limits, resolve_placement
from gpupool.domain.work.sharing_policy import resolve_compute, resolve_request
from gpupool.domain.work.workload import Program, Replica, ReplicaState, Serving, Workload, WorkloadKind
from gpupool.domain.work.workspace import IMPORT_COMMAND, WorkspaceAction, check_action
from gpupool.scheduling.explain.feasibility import check_gang_possible, check_possible
from gpupool.scheduling.state.cluster import NODE, Shape, Shapes
from gpupool.services.access.permissions import Permissions, forbidden
from gpupool.services.access.workspaces import WorkspaceAccess
from gpupool.services.control.engine import Engine
from gpupool.services.control.lookup import Lookup
from gpupool.services.lifecycle.reserved_gpus import is_reservation
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.state.mirror import Draft
from gpupool.specs.request import Submitter, WorkloadRequest, digest_of, references, to_workload

MAX_LIVE_REPLICAS = 200_000
MAX_PROGRAMS_PER_USER = 256  # of the kind exec: commands, shells and SSH sessions
START_TIMEOUT_S = 10.0  # of the workload on whose GPUs a program starts
LEASE_IDLE_S = 1800.0  # default idle limit of a bare lease


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request in the form that is stored, with the workloads that it refers to."""

    workload: Workload
    replicas: tuple[Replica, ...]
    referred: dict[str, Workload]


@dataclass(frozen=True, slots=True)
class SubmissionChecks:
    """Checks of a new workload by other services; each raises ``GpupoolError``."""

    files: Callable[[Actor, Program], Awaitable[None]]
    workspaces: WorkspaceAccess
    containers: Callable[[Workload], None]


class SubmissionService:
    """Stores new workloads. A repeated request with the same ``request_id`` returns the workload of the first."""

    def __init__(
        self,
        engine: Engine,
        identities: IdentityCache,
        permissions: Permissions,
        lookup: Lookup,
        checks: SubmissionChecks,
        *,
        as_user: bool,
    ) -> None:
        """Create the service; with ``as_user`` programs run as the account of their user, as in a system pool."""
        self._as_user = as_user
        self._engine = engine
        self._identities = identities
        self._permissions = permissions
        self._lookup = lookup
        self._checks = checks

    async def submit(self, actor: Actor, request: WorkloadRequest) -> tuple[Workload, bool]:
        """Store a workload; return it, and True if this call created it."""
        if request.kind is WorkloadKind.SERVICE:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                "A service is not a single workload.",
                "Create it with `gpupool serve`, or POST it to /v1/services.",
            )
        try:
            return await self._submit_new(actor, request), True
        except GpupoolError:
            # It may be a repeated request, because the database refuses a known request_id.
            seen = await self._seen_before(actor, request)
            if seen is None:
                raise
            return seen, False

    async def _submit_new(self, actor: Actor, request: WorkloadRequest) -> Workload:
        return await self.write(actor, await self.prepare(actor, request))

    async def prepare_replica(
        self, actor: Actor, request: WorkloadRequest, serving: Serving, *, protected: bool
    ) -> Prepared:
        """Return the checked workload of a replica of a service without storing it. Raises ``GpupoolError``.

        A ``protected`` replica that is larger than the quota becomes a preemptible one, as the others are.
        """
        if protected:
            try:
                return await self.prepare(actor, request, serving)
            except GpupoolError as error:
                if error.code is not ErrorCode.OVER_LIMIT:
                    raise
        return await self.prepare(actor, request.model_copy(update={"preemptible": True}), serving)

    async def prepare(self, actor: Actor, request: WorkloadRequest, serving: Serving | None = None) -> Prepared:
        """Return the checked workload of a request without storing it. Raises ``GpupoolError``."""
        project = self._identities.project(request.project or DEFAULT_PROJECT)
        self._permissions.need_project(actor, project)
        referred = {ref: await self._lookup.workload(actor, ref) for ref in references(request)}
        now = self._engine.ports.clock.now()
        workload, replicas = to_workload(
            request,
            id=workload_id(self._engine.ports.random_bits(ID_BITS)),
            submitter=Submitter(actor.user, actor.uid, project.name, now),
            resolve={ref: found.id for ref, found in referred.items()},
        )
        if serving is not None:
            workload = replace(workload, program=replace(workload.program, serving=serving))
        if request.workspace is not None:
            workload = self._in_workspace(actor, workload, request.workspace)
        workload = self._with_sharing(self._with_defaults(workload), request.gpus.compute)
        self._need_account(workload)
        self._check(actor, workload)
        self._checks.containers(workload)
        await self._checks.files(actor, workload.program)
        return Prepared(workload, replicas, referred)

    def _in_workspace(self, actor: Actor, workload: Workload, ref: str) -> Workload:
        """Return the workload in the home of a stopped workspace, on its node. Raises FORBIDDEN, WRONG_STATE."""
        workspace = self._checks.workspaces.find(actor, ref)
        if workspace.user != workload.user:
            raise forbidden(f"The home of {workspace.name} belongs to {workspace.user}.")
        self._check_unused(workspace.id, workload.program.argv)
        if workload.limits.separate_gpus and self._engine.mirror.reservation_of(workspace.id) is not None:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"{workspace.name} has reserved GPUs.",
                "Release them, or omit lazy and on_preempt.",
            )
        self._checks.workspaces.check_disk(workspace.user, workspace.project)
        labels = tuple(sorted({**dict(workload.gpus.labels), NODE: workspace.node}.items()))
        program = replace(workload.program, workspace=workspace.id)
        return replace(workload, program=program, gpus=replace(workload.gpus, labels=labels))

    def _check_unused(self, workspace: str, argv: tuple[str, ...]) -> None:
        """Raise WRONG_STATE if a home is used or changed; UNKNOWN_WORKSPACE if it was deleted.

        While its files are imported, only the program that reads them may use it.
        """
        registry = self._checks.workspaces.registry
        row = registry.rows.get(workspace)
        if row is None:
            raise GpupoolError(ErrorCode.UNKNOWN_WORKSPACE, "The workspace was deleted.", "Create it again.")
        reads = argv[:3] == IMPORT_COMMAND and registry.session_state(row) is None
        action = WorkspaceAction.IMPORT if row.importing and reads else WorkspaceAction.START
        check_action(row, registry.state(row), action)

    def _need_account(self, workload: Workload) -> None:
        """Raise FORBIDDEN for a user without an account, whose programs would run as root."""
        if self._as_user and workload.uid is None and workload.kind is not WorkloadKind.LEASE:
            raise GpupoolError(
                ErrorCode.FORBIDDEN,
                f"{workload.user} has no account on the nodes to run programs.",
                f"An administrator sets it: `gpupool user set {workload.user} --uid UID`.",
            )

    async def _seen_before(self, actor: Actor, request: WorkloadRequest) -> Workload | None:
        if request.request_id is None:
            return None
        found = await self._engine.ports.store.by_request_id(request.request_id)
        if found is not None and found.user != actor.user:
            raise GpupoolError(ErrorCode.FORBIDDEN, "This request_id belongs to another user.", "Use a random one.")
        if found is not None and found.request_digest not in {"", digest_of(request)}:
            raise GpupoolError(
                ErrorCode.REQUEST_ID_REUSED,
                f"This request_id was used for another request, which created {found.name}.",
                "Use a new request_id for each request; repeat it only for the same request.",
            )
        return found and self._engine.mirror.workloads.get(found.id, found)

    def _with_defaults(self, workload: Workload) -> Workload:
        """Return the workload with default limits of the project and the pool."""
        project = self._identities.project(workload.project)
        limits = workload.limits
        idle = limits.idle_timeout_s or project.idle_timeout_s
        if workload.kind is WorkloadKind.SERVICE:  # its requests count, not its use of GPUs
            idle = None
        if idle is None and workload.kind is WorkloadKind.LEASE:
            idle = LEASE_IDLE_S
        limits = limits if workload.kind is WorkloadKind.EXEC else resolve_limits(limits, project)
        longest = min((t for t in (limits.max_time_s, project.max_time_s) if t is not None), default=None)
        return replace(workload, limits=replace(limits, idle_timeout_s=idle, max_time_s=longest))

    def _with_sharing(self, workload: Workload, compute: ComputePolicy | None) -> Workload:
        """Return the workload with its sharing mode, as requested and allowed by the project; not for an EXEC."""
        if workload.kind is WorkloadKind.EXEC:
            return workload
        project = self._identities.project(workload.project)
        rules = self._engine.feed.policy

        def resolve(request: GpuRequest) -> GpuRequest:
            return resolve_placement(resolve_request(request, project), project, rules.spread, rules.placement)

        roles = tuple(role if role.gpus is None else replace(role, gpus=resolve(role.gpus)) for role in workload.roles)
        gpus, policy = resolve(workload.gpus), resolve_compute(compute, project)
        return replace(workload, gpus=gpus, roles=roles, compute=policy)

    def _check(self, actor: Actor, workload: Workload) -> None:
        """Raise if the workload could never start."""
        live = sum(len(rows) for rows in self._engine.mirror.replicas.values())
        if live + workload.completions > MAX_LIVE_REPLICAS:
            raise GpupoolError(
                ErrorCode.OVER_LIMIT,
                f"The pool has at most {MAX_LIVE_REPLICAS} live replicas.",
                "Try again later.",
            )
        if workload.kind is WorkloadKind.EXEC:
            return
        self._check_queue(actor, workload)
        placer = self._engine.feed.scheduler.placer
        project = self._identities.project(workload.project)
        self._permissions.need_priority(actor, project, workload.priority)
        pools = project.rules.node_pools
        for gpus, cpus, memory_mib in workload.different_members():
            check_possible(placer, gpus, cpus, memory_mib, pools)
            check_replica_gpus(placer.least_permille(Shapes().get(gpus, 0, 0)), project)
        if workload.gang is not None:
            check_gang_possible(placer, _starting_shapes(workload, workload.gang, pools), workload.gang)
        self._check_bounds(workload)

    def _check_queue(self, actor: Actor, workload: Workload) -> None:
        """Raise QUEUE_LIMIT when too many replicas of the user or project would wait; administrators are exempt."""
        mirror, per_user = self._engine.mirror, self._engine.feed.policy.max_queued_per_user
        if actor.role is Role.ADMIN:
            return
        same_user = (w.id for w in mirror.workloads.values() if w.user == workload.user)
        self._check_queued(workload, same_user, workload.user, per_user, "gpupool policy set --max-queued-per-user")
        of_project = self._identities.project(workload.project).rules.max_queued
        if of_project is not None:
            same_project = (w.id for w in mirror.workloads.values() if w.project == workload.project)
            command = f"gpupool project set {workload.project} --max-queued"
            self._check_queued(workload, same_project, f"The project {workload.project}", of_project, command)

    def _check_queued(
        self, workload: Workload, others: Iterable[WorkloadId], owner: str, limit: int, command: str
    ) -> None:
        queued = sum(self._engine.mirror.counts[id_][ReplicaState.PENDING] for id_ in others)
        if queued + workload.completions > limit:
            raise GpupoolError(
                ErrorCode.QUEUE_LIMIT,
                f"{owner} has {queued} replicas in the queue; {workload.completions} more would be over the "
                f"limit of {limit}.",
                f"Wait for some to start. Administrators change the limit: `{command}`.",
            )

    def _check_programs(self, user: str) -> None:
        """Raise OVER_LIMIT if the user has as many programs on GPUs of other workloads as are allowed."""
        mirror = self._engine.mirror
        if sum(mirror.workloads[id_].user == user for keys in mirror.execs.values() for id_, _ in keys) < (
            MAX_PROGRAMS_PER_USER
        ):
            return
        raise GpupoolError(
            ErrorCode.OVER_LIMIT,
            f"{user} has {MAX_PROGRAMS_PER_USER} commands, shells and SSH sessions already, the most that are allowed.",
            "End some: `gpupool ps` lists them, `gpupool stop NAME` ends one.",
        )

    def _check_bounds(self, workload: Workload) -> None:
        """Raise OVER_LIMIT if a replica, or the smallest gang, needs more than a limit of its project or user."""
        project = self._identities.project(workload.project)
        user = self._identities.users.get(workload.user)
        members = range(workload.gang.least if workload.gang is not None else 1)
        need = sum(_least_permille(workload.gpus_of(index)) for index in members)
        protected_bound = project.quota_permille if not workload.preemptible or not project.over_quota else None
        for bound, whose in (
            (protected_bound, f"the quota of {project.name}"),
            (project.limit_permille, f"the limit of {project.name}"),
            (project.user_limit_permille, f"the limit per user in {project.name}"),
            (user.gpu_limit_permille if user else None, f"the limit of {workload.user}"),
        ):
            if bound is not None and need > bound:
                raise GpupoolError(
                    ErrorCode.OVER_LIMIT,
                    f"The workload needs {format_permille(need)} GPU at once; {whose} is {format_permille(bound)}.",
                    "Request fewer GPUs, or submit training if the project may exceed its quota.",
                )

    async def write(self, actor: Actor, prepared: Prepared) -> Workload:
        """Store a prepared workload."""
        workload, replicas = prepared.workload, prepared.replicas
        if workload.kind is WorkloadKind.EXEC:
            await self._wait_for_host(WorkloadId(workload.on or ""), workload.on_index)

        async def build(draft: Draft) -> Workload:
            self.put(draft, actor, prepared)
            await self.note_dependencies(workload)
            if workload.kind is WorkloadKind.EXEC:
                self._start_on_host(draft, actor, workload, replicas[0], prepared.referred)
            return workload

        await self._engine.transact_slow(build)
        return self._engine.mirror.workloads.get(workload.id, workload)

    def check_priority(self, actor: Actor, project: str, priority: int) -> None:
        """Raise OVER_LIMIT if a member chooses a priority above the limit of the project."""
        self._permissions.need_priority(actor, self._identities.project(project), priority)

    def put(self, draft: Draft, actor: Actor, prepared: Prepared) -> None:
        """Insert a prepared workload, which does not use the GPUs of another one. Raises ``GpupoolError``."""
        workload = prepared.workload
        if workload.kind is WorkloadKind.EXEC:
            self._check_programs(workload.user)
        else:
            self._check_queue(actor, workload)  # others may have been written since it was prepared
        if workload.program.workspace and not is_reservation(workload):
            self._check_unused(workload.program.workspace, workload.program.argv)
        draft.put_workload(workload)
        for row in prepared.replicas:
            draft.put_replica(row)
        draft.note(Event(draft.now, actor.user, Reason.SUBMITTED, f"submitted {workload.name}", workload.id))

    async def _wait_for_host(self, host: WorkloadId, index: int) -> None:
        """Wait while the replica whose GPUs a program uses starts: its workload is shown as running already."""

        def has_started() -> bool:
            replica = self._engine.mirror.replica(host, index)
            return replica is None or replica.state is not ReplicaState.STARTING

        await self._engine.wait_for_change(host, START_TIMEOUT_S, has_started)

    async def note_dependencies(self, workload: Workload) -> None:
        """Load the end of ended workloads that this one depends on."""
        for dependency in workload.after:
            if dependency.workload not in self._engine.mirror.workloads:
                found = await self._engine.ports.store.get_workload(dependency.workload)
                if found is not None:
                    self._engine.feed.dependencies.learn_end(found)

    def _start_on_host(
        self, draft: Draft, actor: Actor, workload: Workload, replica: Replica, referred: dict[str, Workload]
    ) -> None:
        """Start an EXEC at once, on the lease of its host."""
        host = draft.workload(WorkloadId(workload.on or ""))
        known = next((w for w in referred.values() if w.id == workload.on), None)
        holder = draft.replica(host.id, workload.on_index) if host is not None else None
        if known is not None:
            self._permissions.need_manage(actor, known)
        if host is None or holder is None or holder.state is not ReplicaState.RUNNING or holder.lease is None:
            name = known.name if known is not None else workload.on
            state = holder.state if holder is not None else known.state if known is not None else "gone"
            raise GpupoolError(
                ErrorCode.WRONG_STATE, f"{name} holds no GPUs: it is {state}.", f"See `gpupool why {name}`."
            )
        if host.kind is WorkloadKind.EXEC:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, f"{host.name} uses another workload's GPUs.", "Name that workload."
            )
        if is_reservation(host):
            raise GpupoolError(
                ErrorCode.WRONG_STATE,
                f"The GPUs of {host.name} are reserved for a workspace.",
                "Start the workspace and use its session.",
            )
        draft.take(lifecycle.grant_lease(workload, replica, holder.lease, holder.node or "", draft.now))


def _starting_shapes(workload: Workload, gang: Gang, pools: tuple[str, ...]) -> Counter[Shape]:
    """Count the shapes of the members that start together."""
    shapes, members = Shapes(), range(gang.least)
    asked = ((workload.gpus_of(i), workload.counted_cpus(i), workload.memory_of(i) or 0) for i in members)
    return Counter(shapes.get(*each, "", pools) for each in asked)


def _least_permille(gpus: GpuRequest) -> int:
    """Return a lower bound in thousandths of a GPU: 1 per slice by memory, whose share depends on the GPU."""
    return gpus.count * (gpus.permille if gpus.memory_mib is None else 1)
