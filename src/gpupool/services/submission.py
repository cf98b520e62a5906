"""Taking in a request: who asks, whether it can ever be served, and writing it down once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from gpupool.domain import lifecycle
from gpupool.domain.access import DEFAULT_PROJECT, Actor
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.gang import Gang
from gpupool.domain.gpu import ComputePolicy, GpuRequest
from gpupool.domain.ids import WorkloadId, workload_id
from gpupool.domain.rules import check_gpus, settled_limits
from gpupool.domain.sharing import settled_compute, settled_request
from gpupool.domain.units import format_permille
from gpupool.domain.workload import Program, Replica, ReplicaState, Workload, WorkloadKind
from gpupool.scheduling.feasible import check_gang_possible, check_possible
from gpupool.scheduling.shape import Shape, Shapes
from gpupool.services.engine import Engine
from gpupool.services.lookup import Lookup
from gpupool.services.mirror import Draft
from gpupool.services.permissions import Permissions
from gpupool.services.register import Register
from gpupool.specs.request import Submitter, WorkloadRequest, references, to_workload

MOST_LIVE_REPLICAS = 200_000
LEASE_IDLE_S = 1800.0  # a bare lease on which no program runs is taken back after so long unless told otherwise
ID_BITS = 50


async def _no_files(_actor: Actor, _program: Program) -> None:
    """Until somebody is there who knows them."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as it would be written, with the workloads that it names."""

    workload: Workload
    replicas: tuple[Replica, ...]
    referred: dict[str, Workload]


class SubmissionService:
    """Writes new workloads. A request that repeats a ``request_id`` finds what the first one made."""

    def __init__(
        self, engine: Engine, register: Register, permissions: Permissions, lookup: Lookup, *, as_user: bool = False
    ) -> None:
        """``as_user``: programs run as the accounts of those who submit them, as in a system pool."""
        self._as_user = as_user
        self._engine = engine
        self._register = register
        self._permissions = permissions
        self._lookup = lookup
        self.check_files: Callable[[Actor, Program], Awaitable[None]] = _no_files
        self.check_containers: Callable[[Workload], None] = lambda _workload: None

    async def submit(self, actor: Actor, request: WorkloadRequest) -> tuple[Workload, bool]:
        """The workload, and whether this call made it."""
        try:
            return await self._submit_new(actor, request), True
        except GpupoolError:
            # Whatever stands in the way of doing it twice: the database refuses a request_id that it has.
            seen = await self._seen_before(actor, request)
            if seen is None:
                raise
            return seen, False

    async def _submit_new(self, actor: Actor, request: WorkloadRequest) -> Workload:
        return await self.write(actor, await self.prepare(actor, request))

    async def prepare(self, actor: Actor, request: WorkloadRequest) -> Prepared:
        """What a request comes to, checked as any submission is, and not written. Raises ``GpupoolError``."""
        project = self._register.project(request.project or DEFAULT_PROJECT)
        self._permissions.need_project(actor, project)
        referred = {ref: await self._lookup.workload(actor, ref) for ref in references(request)}
        now = self._engine.ports.clock.now()
        workload, replicas = to_workload(
            request,
            id=workload_id(self._engine.ports.random_bits(ID_BITS)),
            submitter=Submitter(actor.user, actor.uid, project.name, now),
            resolve={ref: found.id for ref, found in referred.items()},
        )
        workload = self._with_sharing(self._with_defaults(workload), request.gpus.compute)
        self._need_account(workload)
        self._check(workload)
        self.check_containers(workload)
        await self.check_files(actor, workload.program)
        return Prepared(workload, replicas, referred)

    def _need_account(self, workload: Workload) -> None:
        """Without an account of their own, somebody's programs would run as the pool itself: as root."""
        if self._as_user and workload.uid is None and workload.kind is not WorkloadKind.LEASE:
            raise GpupoolError(
                ErrorCode.FORBIDDEN,
                f"{workload.user} has no account on the machines of the pool to run programs as.",
                f"An administrator gives one: `gpupool user set {workload.user} --uid UID`.",
            )

    async def _seen_before(self, actor: Actor, request: WorkloadRequest) -> Workload | None:
        if request.request_id is None:
            return None
        found = await self._engine.ports.store.by_request_id(request.request_id)
        if found is not None and found.user != actor.user:
            raise GpupoolError(ErrorCode.FORBIDDEN, "This request_id is somebody else's.", "Make a random one.")
        return found and self._engine.mirror.workloads.get(found.id, found)

    def _with_defaults(self, workload: Workload) -> Workload:
        """What the project, or the pool, bounds when the request does not."""
        project = self._register.project(workload.project)
        limits = workload.limits
        idle = limits.idle_timeout_s or project.idle_timeout_s
        if idle is None and workload.kind is WorkloadKind.LEASE:
            idle = LEASE_IDLE_S
        limits = limits if workload.kind is WorkloadKind.EXEC else settled_limits(limits, project)
        longest = min((t for t in (limits.max_time_s, project.max_time_s) if t is not None), default=None)
        return replace(workload, limits=replace(limits, idle_timeout_s=idle, max_time_s=longest))

    def _with_sharing(self, workload: Workload, compute: ComputePolicy | None) -> Workload:
        """How its GPUs are shared, as it asks and its project allows; an exec has what it runs on."""
        if workload.kind is WorkloadKind.EXEC:
            return workload
        project = self._register.project(workload.project)
        roles = tuple(
            role if role.gpus is None else replace(role, gpus=settled_request(role.gpus, project))
            for role in workload.roles
        )
        gpus, policy = settled_request(workload.gpus, project), settled_compute(compute, project)
        return replace(workload, gpus=gpus, roles=roles, compute=policy)

    def _check(self, workload: Workload) -> None:
        """Refuse now what could never start."""
        live = sum(len(rows) for rows in self._engine.mirror.replicas.values())
        if live + workload.completions > MOST_LIVE_REPLICAS:
            raise GpupoolError(
                ErrorCode.OVER_LIMIT, f"The pool keeps at most {MOST_LIVE_REPLICAS} live replicas.", "Try again later."
            )
        if workload.kind is WorkloadKind.EXEC:
            return
        placer = self._engine.demand.scheduler.placer
        project = self._register.project(workload.project)
        pools = project.rules.node_pools
        for gpus, cpus, memory_mib in workload.different_members():
            check_possible(placer, gpus, cpus, memory_mib, pools)
            check_gpus(placer.least_permille(Shapes().get(gpus, 0, 0)), project)
        if workload.gang is not None:
            check_gang_possible(placer, _who_start(workload, workload.gang, pools), workload.gang)
        self._check_bounds(workload)

    def _check_bounds(self, workload: Workload) -> None:
        """A single replica, or the least of a gang, above a bound of its project or user would wait for ever."""
        project = self._register.project(workload.project)
        user = self._register.users.get(workload.user)
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
                    f"It needs {format_permille(need)} GPU at once; {whose} is {format_permille(bound)}.",
                    "Ask for less, or submit training where the project may exceed its quota.",
                )

    async def write(self, actor: Actor, prepared: Prepared) -> Workload:
        """Write down what was prepared."""
        workload, replicas = prepared.workload, prepared.replicas

        async def build(draft: Draft) -> Workload:
            draft.put_workload(workload)
            for row in replicas:
                draft.put_replica(row)
            draft.note(Event(draft.now, actor.user, Reason.SUBMITTED, f"submitted {workload.name}", workload.id))
            await self.note_dependencies(workload)
            if workload.kind is WorkloadKind.EXEC:
                self._start_on_host(draft, actor, workload, replicas[0], prepared.referred)
            return workload

        await self._engine.transact_slow(build)
        return self._engine.mirror.workloads.get(workload.id, workload)

    async def note_dependencies(self, workload: Workload) -> None:
        """How those have ended that this one waits for and that are not alive any more."""
        for dependency in workload.after:
            if dependency.workload not in self._engine.mirror.workloads:
                found = await self._engine.ports.store.get_workload(dependency.workload)
                if found is not None:
                    self._engine.demand.dependencies.finished_states[found.id] = found.state

    def _start_on_host(
        self, draft: Draft, actor: Actor, workload: Workload, replica: Replica, referred: dict[str, Workload]
    ) -> None:
        """A program on another workload's GPUs starts at once, on that workload's lease."""
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
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{host.name} uses another workload's GPUs.", "Name that one.")
        draft.take(lifecycle.granted(workload, replica, holder.lease, holder.node or "", draft.now))


def _who_start(workload: Workload, gang: Gang, pools: tuple[str, ...]) -> Counter[Shape]:
    """How many of those who start together ask for what."""
    shapes, members = Shapes(), range(gang.least)
    asked = ((workload.gpus_of(i), workload.counted_cpus(i), workload.memory_of(i) or 0) for i in members)
    return Counter(shapes.get(*each, "", pools) for each in asked)


def _least_permille(gpus: GpuRequest) -> int:
    """Thousandths of GPUs at least; what an amount of memory comes to depends on the GPU."""
    return gpus.count * (gpus.permille if gpus.memory_mib is None else 1)
