"""The control loop of services: it starts, drains and stops replicas until they are as desired.

Everything that it needs is read from the rows of services and workloads, so it continues after a restart of the control
plane. Only the results of checks, the time since when replicas drain, and the load are in memory; it decides nothing
about a service before each of its replicas was checked once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import NodeState
from gpupool.domain.people.access import Actor, Role
from gpupool.domain.protocol.gateway_table import MAX_TOKENS, Load, Report, TokenUse
from gpupool.domain.units import format_duration
from gpupool.domain.work.gang import MemberAddress
from gpupool.domain.work.lifecycle import POOL
from gpupool.domain.work.service import (
    Probe,
    ReplicaStatus,
    Revision,
    Service,
    ServiceState,
    give_up,
    promote,
    state_of,
)
from gpupool.domain.work.workload import Replica, ReplicaState, Serving, Workload
from gpupool.services.control.engine import Engine
from gpupool.services.lifecycle import transitions
from gpupool.services.ports.store import EventFilter
from gpupool.services.serving import autoscaler, rollout, swapping
from gpupool.services.serving.problems import ServiceFacts, ServiceProblem, ServiceProblems, recalled
from gpupool.services.serving.readiness import ProbeTarget, Readiness, ReadinessChecks
from gpupool.services.serving.ready_estimate import AskWhy, AwaitedReplica, expected_in_s, rounded
from gpupool.services.serving.routes import OtherRoutes, RouteTable
from gpupool.services.state.mirror import Draft
from gpupool.services.state.node_registry import NodeRegistry
from gpupool.services.state.service_registry import ServiceRegistry
from gpupool.services.workloads.submission import SubmissionService
from gpupool.specs.request import parse_request

INTERVAL_S = 1.0
ESTIMATE_INTERVAL_S = 5.0
SWAP_AFTER_S = 2.0  # time that a replica waits for GPUs before another service is stopped
RETRY_S = 10.0  # after a replica could not be submitted
MAX_RECALLED = 1_000  # warnings that are read at the start
MAX_UPDATE_FAILURES = 3  # ends of a replica's program, after which its revision is given up
QUEUED = "it waits for GPUs; `--surge 0` stops a replica before its successor starts"
_OWN = frozenset({"name", "project", "service", "request_id"})  # fields that are set for each replica

log = structlog.get_logger("gpupool.services")


@dataclass(slots=True)
class Status:
    """The state of a service in memory.

    ``requests``, ``errors``, ``refusals``, ``tokens`` (the use by digest) and ``gpu_s`` (seconds of allocated GPUs,
    until ``counted_at``) count since the start of this control plane. ``problem`` is the reason why a replica
    could not be submitted. ``load_s`` is the time that its last replica needed to be ready, and ``expected_at`` when
    the first replica is expected, while requests are held. ``refused`` counts refused requests since the last look at
    ``problems``.
    """

    scaler: autoscaler.Scaler
    load: Load
    drains: dict[str, float] = field(default_factory=dict)
    problem: str = ""
    retry_at: float = 0.0
    requests: int = 0
    errors: int = 0
    refused: int = 0
    used_at: float = 0.0
    problems: ServiceProblems = field(default_factory=ServiceProblems)
    tokens: dict[str, TokenUse] = field(default_factory=dict)
    refusals: int = 0
    gpu_s: float = 0.0
    counted_at: float | None = None
    load_s: float | None = None
    expected_at: float | None = None


@dataclass(frozen=True, slots=True)
class ServiceReplica:
    """A live replica of a service: its workload, its place, and the result of its checks."""

    view: ReplicaStatus
    workload: Workload
    replica: Replica
    seat: MemberAddress | None
    readiness: Readiness | None


class ServiceController:
    """Reconciles all services once a second, and at once after changes and reports of the gateway.

    Without services and routes it does nothing until the next change.
    """

    def __init__(
        self, engine: Engine, registry: ServiceRegistry, nodes: NodeRegistry, submission: SubmissionService
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._nodes = nodes
        self._submission = submission
        self._statuses: dict[str, Status] = {}
        self._changed = asyncio.Event()
        self._first = True
        self.checks = ReadinessChecks(
            engine.ports.fabric, engine.ports.clock.monotonic, engine.ports.sleep, self._changed.set
        )

    def wake(self) -> None:
        """Reconcile now."""
        self._changed.set()

    # Reading

    def status(self, service: Service) -> Status:
        """Return what is known about a service; after a restart its desired number is that of its replicas."""
        if service.id not in self._statuses:
            live = sum(each.draining_s is None for each in self._views(service))
            least = min(max(live, service.scale.least), service.scale.most)
            self._statuses[service.id] = Status(autoscaler.Scaler(least), Load(service.key, 0, 0, 0, 0))
        return self._statuses[service.id]

    def desired(self, service: Service) -> int:
        """Return the desired number of replicas."""
        if service.stopped:
            return 0
        return min(max(self.status(service).scaler.desired, service.scale.least), service.scale.most)

    def state(self, service: Service) -> ServiceState:
        """Return the state of a service."""
        return state_of(service, self.desired(service), [each.view for each in self.replicas(service)])

    def replicas(self, service: Service) -> list[ServiceReplica]:
        """Return the replicas that were not told to end, oldest first."""
        drains = self._statuses[service.id].drains if service.id in self._statuses else {}
        load = self._statuses[service.id].load if service.id in self._statuses else None
        found = [self._replica(workload, drains, load) for workload in self._workloads(service)]
        return sorted(found, key=lambda each: (each.view.created_at, each.view.id))

    def _views(self, service: Service) -> Iterable[ReplicaStatus]:
        return (self._replica(workload, {}, None).view for workload in self._workloads(service))

    def _workloads(self, service: Service) -> list[Workload]:
        mirror = self._engine.mirror
        rows = (mirror.workloads.get(each) for each in mirror.service_replicas.get(service.id, ()))
        return [row for row in rows if row is not None and row.stop_reason is None and not row.state.final]

    def _replica(self, workload: Workload, drains: dict[str, float], load: Load | None) -> ServiceReplica:
        replica = self._engine.mirror.replica(workload.id, 0) or Replica(workload.id, 0)
        seat = workload.wiring.seat_of(0) if workload.wiring is not None else None
        if seat is not None and (seat.attempt != replica.attempt or replica.state is not ReplicaState.RUNNING):
            seat = None
        node = self._nodes.find(replica.node or "")
        reachable = node is not None and node.state is not NodeState.DOWN
        result = self.checks.results.get(replica.key) if seat is not None else None
        since = drains.get(workload.id)
        serving = workload.program.serving
        view = ReplicaStatus(
            id=workload.id,
            revision=0 if serving is None else serving.revision,
            created_at=workload.created_at,
            ready=result is not None and result.ready and reachable,
            started=replica.state.placed,
            served=result is not None and result.served,
            protected=not workload.preemptible,
            draining_s=None if since is None else self._monotonic() - since,
            requests=None if load is None or not self._reported else load.replicas.get(workload.id, 0),
            leaving=replica.node in self._nodes.drained,
        )
        return ServiceReplica(view, workload, replica, seat, result)

    @property
    def _reported(self) -> bool:
        """Return whether the gateway reports the load now."""
        gateway = self._engine.ports.gateway
        return gateway is not None and gateway.connected

    def _monotonic(self) -> float:
        return self._engine.ports.clock.monotonic()

    # Reports of the gateway

    def take(self, report: Report) -> None:
        """Record the load of a service, or that a request waits for its first replica."""
        project, _, name = report.key.partition("/")
        service = self._registry.find(project, name)
        if service is None:
            return
        status = self.status(service)
        if isinstance(report, Load):
            times = report.first_byte_ms or status.load.first_byte_ms
            status.load = replace(report, first_byte_ms=times)
            status.requests += report.requests
            status.errors += report.errors
            status.refused += report.refused
            status.refusals += report.refused
            for digest, use in report.tokens.items():
                known = digest if digest in status.tokens or len(status.tokens) < MAX_TOKENS else ""
                status.tokens[known] = status.tokens.get(known, TokenUse()).plus(use)
            status.used_at = self._monotonic()
        elif not status.load.held:
            status.load = replace(status.load, held=1)
            self.wake()

    # The loop

    async def run(self, routes: RouteTable, ports: OtherRoutes) -> None:
        """Reconcile for ever. ``ports`` returns the routes of opened ports of other workloads."""
        try:
            while True:
                self._changed.clear()
                for service in list(self._registry.rows.values()):
                    try:
                        await self.reconcile(service)
                    except GpupoolError as error:
                        log.warning("service not reconciled", service=service.key, code=error.code)
                self._swap()
                await self._warn()
                routed = await self._publish(routes, ports)
                await self._pause(at_most_s=INTERVAL_S if routed or self._registry.rows else None)
        finally:
            self.checks.close()

    async def _pause(self, *, at_most_s: float | None) -> None:
        """Sleep until the next change, or for ``at_most_s``."""
        if at_most_s is None:
            await self._changed.wait()
            return
        sleeping = asyncio.ensure_future(self._engine.ports.sleep(at_most_s))
        waking = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()

    async def _publish(self, routes: RouteTable, ports: OtherRoutes) -> bool:
        """Publish the routes; return whether there are any."""
        services = list(self._registry.rows.values())
        self._watch(services)
        if self._first and any(not self._known(self.replicas(each)) for each in services):
            return True  # the gateway continues with its last table until all replicas are checked
        self._first = False
        rows = [(each, self.replicas(each), self._reason(each), self._expected_in_s(each)) for each in services]
        return await routes.publish(rows, ports)

    def _expected_in_s(self, service: Service) -> float | None:
        expected_at = self.status(service).expected_at
        return None if expected_at is None else rounded(expected_at - self._monotonic())

    async def estimate(self, why: AskWhy) -> None:
        """Estimate for ever when services with held requests have a replica that is ready."""
        while True:
            await self._engine.ports.sleep(ESTIMATE_INTERVAL_S)
            for service in list(self._registry.rows.values()):
                await self._estimate(service, why)

    async def _estimate(self, service: Service, why: AskWhy) -> None:
        status, replicas = self.status(service), self.replicas(service)
        if service.stopped or not status.load.held or any(each.view.ready for each in replicas):
            status.expected_at = None
            return
        awaited = [self._awaited(each) for each in replicas if each.view.draining_s is None]
        expected_s = await expected_in_s(awaited, status.load_s, why)
        before = status.expected_at
        status.expected_at = None if expected_s is None else self._monotonic() + expected_s
        if before is None and expected_s is not None:
            self.wake()

    def _awaited(self, each: ServiceReplica) -> AwaitedReplica:
        if not each.view.started:
            return AwaitedReplica(queued=each.workload)
        return AwaitedReplica(running_s=0.0 if each.readiness is None else self._monotonic() - each.readiness.began)

    def _reason(self, service: Service) -> str:
        """Return why a service has no ready replica."""
        if service.stopped:
            return f"The service {service.name} is stopped."
        if problem := self.status(service).problem:
            return problem
        queued = [each.workload.name for each in self.replicas(service) if not each.view.started]
        return f"Its replica waits for GPUs; see `gpupool why {queued[0]}`." if queued else ""

    def _watch(self, services: Iterable[Service]) -> None:
        targets: dict[str, ProbeTarget] = {}
        for service in services:
            for each in self.replicas(service):
                if each.seat is not None and each.replica.node is not None:
                    probe = probe_of(service, each.view.revision)
                    key = each.replica.key
                    targets[key] = ProbeTarget(key, each.replica.node, each.seat.ports[0], probe, each.seat.address)
        self.checks.watch(targets)

    @staticmethod
    def _known(replicas: Iterable[ServiceReplica]) -> bool:
        """Return True if each running replica was checked."""
        return all(each.seat is None or (each.readiness is not None and each.readiness.known) for each in replicas)

    async def reconcile(self, service: Service) -> None:
        """Take the next steps of a service."""
        status, now = self.status(service), self._monotonic()
        if not service.stopped and self._reported:
            demand = autoscaler.ServiceDemand(status.load.in_flight, status.load.held)
            status.scaler = autoscaler.step(service.scale, status.scaler, demand, now)
        replicas = self.replicas(service)
        self._count_gpus(status, replicas, now)
        loads = [each.readiness.load_s for each in replicas if each.readiness is not None]
        status.load_s = next((each for each in reversed(loads) if each is not None), status.load_s)
        if not self._known(replicas):
            return
        status.drains = {
            each.view.id: status.drains[each.view.id] for each in replicas if each.view.id in status.drains
        }
        if await self._give_up_or_restart(service, replicas):
            return
        steps = rollout.plan(service, self.desired(service), [each.view for each in replicas])
        for each in steps.undrain:
            status.drains.pop(each, None)
        for each in steps.drain:
            status.drains[each] = now
        if steps.stop:
            await self._stop(steps.stop)
        if steps.complete:
            await self._change(service, promote, f"serves revision {service.target}")
        if steps.start and now >= status.retry_at:
            await self._start(service, status, steps)

    def _count_gpus(self, status: Status, replicas: list[ServiceReplica], now: float) -> None:
        leases = [self._engine.mirror.lease_of(each.replica) for each in replicas if each.view.started]
        permille = sum(lease.permille for lease in leases if lease is not None)
        if status.counted_at is not None:
            status.gpu_s += permille / 1000 * (now - status.counted_at)
        status.counted_at = now

    async def load(self) -> None:
        """Read the warnings of earlier control planes, so that none is repeated. Raises ``GpupoolError``."""
        wanted = EventFilter(reasons=(Reason.SERVICE_WARNING,), newest=True, limit=MAX_RECALLED)
        ahead = self._monotonic() - self._now()
        for event in reversed(await self._engine.ports.store.list_events(wanted)):
            row, kind = self._registry.rows.get(event.target.removeprefix("service ")), recalled(event.message)
            if row is not None and kind is not None:
                self.status(row).problems.warned[kind] = event.at + ahead

    async def _warn(self) -> None:
        """Write an event for each service with a new problem."""
        found = [(row, each) for row in list(self._registry.rows.values()) for each in self._new_problems(row)]
        if not found:
            return

        def build(draft: Draft) -> None:
            for row, each in found:
                target = f"service {row.id}"
                draft.note(Event(draft.now, POOL, Reason.SERVICE_WARNING, each.message, target=target))

        try:
            await self._engine.transact(build)
        except GpupoolError as error:
            log.warning("could not warn about a service", code=error.code)

    def _new_problems(self, service: Service) -> list[ServiceProblem]:
        status, replicas = self.status(service), self.replicas(service)
        if not self._known(replicas):
            return []
        why = [each.readiness.message for each in replicas if each.readiness is not None and not each.view.ready]
        reason = self._reason(service) or next(iter(why), "")
        facts = ServiceFacts(
            stopped=service.stopped,
            desired=self.desired(service),
            ready=sum(each.view.ready for each in replicas),
            maximum=service.scale.most,
            scales=service.scale.least < service.scale.most,
            wanted=-(-(status.load.in_flight + status.load.held) // service.scale.concurrency),
            refused=status.refused,
            interrupted=sum(not each.view.started and each.replica.interruptions > 0 for each in replicas),
            reason=reason.rstrip("."),
        )
        status.refused = 0
        return status.problems.look(facts, self._monotonic())

    def _swap(self) -> None:
        """Let services without recent requests give their GPUs to one whose requests wait for GPUs."""
        services = list(self._registry.rows.values())
        for service in services:
            waiting = self._waiting(service)
            if waiting is None or any(self.status(each).drains for each in services if each.project == service.project):
                continue  # GPUs are being released: wait for the effect
            for victim in swapping.choose(waiting, [self._loaded(each) for each in services]):
                log.info("service stopped for another one", service=self._registry.rows[victim].key, to=service.key)
                self.status(self._registry.rows[victim]).scaler = autoscaler.Scaler(0)
                self.wake()

    def _waiting(self, service: Service) -> swapping.WaitingService | None:
        """Return a service with held requests whose only replica waits for GPUs; None if it is not so."""
        replicas = self.replicas(service)
        queued = [each for each in replicas if not each.view.started]
        if service.stopped or not self.status(service).load.held or not queued or len(queued) < len(replicas):
            return None
        first = queued[0]
        if self._now() - first.view.created_at < SWAP_AFTER_S:
            return None
        gpus = first.workload.gpus
        return swapping.WaitingService(service.id, service.project, gpus.count * gpus.permille)

    def _loaded(self, service: Service) -> swapping.Loaded:
        replicas = [each for each in self.replicas(service) if each.view.started]
        now, mirror = self._monotonic(), self._engine.mirror
        leases = [mirror.lease_of(each.replica) for each in replicas]
        ready = [each.readiness.since for each in replicas if each.readiness is not None and each.readiness.ready]
        return swapping.Loaded(
            service.id,
            service.project,
            sum(lease.permille for lease in leases if lease is not None),
            now - max(ready) if ready and len(ready) == len(replicas) else None,
            now - self.status(service).used_at,
            service.scale.min_loaded_s,
            service.scale.least == 0 and not service.updating,
        )

    # Steps

    async def _start(self, service: Service, status: Status, steps: rollout.RolloutSteps) -> None:
        try:
            for number in range(steps.start):
                await self.submit(service, service.revision(service.target), protected=number < steps.protected)
            status.problem = ""
        except GpupoolError as error:
            status.problem, status.retry_at = error.message, self._monotonic() + RETRY_S
            log.warning("replica not submitted", service=service.key, code=error.code, message=error.message)
            if service.updating:
                await self._give_up(service, error.message)

    async def submit(self, service: Service, revision: Revision, *, protected: bool) -> Workload:
        """Submit a replica; a protected one that the quota does not allow becomes a preemptible one."""
        body = replica_body(revision, self._free_name(service, revision.number), service.project)
        actor = owner_of(service)
        serving = Serving(service.id, revision.number, revision.port, revision.port_env)
        made = await self._submission.prepare_replica(actor, parse_request(body), serving, protected=protected)
        return await self._submission.write(actor, made)

    def _free_name(self, service: Service, revision: int) -> str:
        taken = {each.name for each in self._engine.mirror.workloads.values()}
        numbers = (f"{service.name}-r{revision}-{number}" for number in range(len(taken) + 1))
        return next(name for name in numbers if name not in taken)

    async def _stop(self, ids: Iterable[str]) -> None:
        def build(draft: Draft) -> None:
            for each in ids:
                workload = draft.workload(WorkloadId(each))
                if workload is not None and not workload.state.final:
                    transitions.stop_all(draft, workload, Reason.SERVICE_CHANGED)

        await self._engine.transact(build)

    async def _change(
        self,
        service: Service,
        change: Callable[[Service], Service],
        what: str,
        reason: Reason = Reason.SERVICE_CHANGED,
    ) -> None:
        def build(draft: Draft) -> None:
            row = self._registry.rows.get(service.id)
            if row is not None and row.target == service.target:
                draft.put_service(change(row))
                draft.note(Event(draft.now, "pool", reason, f"{row.name} {what}", target=f"service {row.id}"))

        await self._engine.transact(build)
        self.wake()

    async def _give_up(self, service: Service, reason: str) -> None:
        what = f"stays with revision {service.current}: {reason}"
        await self._change(service, lambda row: give_up(row, reason, self._now()), what, Reason.SERVICE_WARNING)

    def _now(self) -> float:
        return self._engine.ports.clock.now()

    async def _give_up_or_restart(self, service: Service, replicas: list[ServiceReplica]) -> bool:
        """End an update whose replicas do not become ready; restart other replicas that are not ready for too long."""
        if service.updating and (reason := self._update_problem(service, replicas)):
            await self._give_up(service, reason)
            return True
        for each in replicas:
            within_s = probe_of(service, each.view.revision).within_s
            result = each.readiness
            if each.view.draining_s is not None or result is None or result.ready:
                continue
            if self._monotonic() - result.since >= within_s:
                await self._restart(each, within_s)
                result.since = self._monotonic()
        return False

    def _update_problem(self, service: Service, replicas: list[ServiceReplica]) -> str:
        """Return why the target revision cannot serve; empty while it may still become ready."""
        new = [each for each in replicas if each.view.revision == service.target]
        within_s = service.revision(service.target).probe.within_s
        for each in new:
            if each.replica.failures >= MAX_UPDATE_FAILURES:
                return f"its program ended {each.replica.failures} times: {each.replica.message}"
        ready_at = [each.readiness.since for each in new if each.readiness is not None and each.readiness.ready]
        changed = self._monotonic() - (self._now() - service.changed_at)
        if not new or self._monotonic() - max([changed, *ready_at]) < within_s:
            return ""
        late = [each for each in new if not each.view.ready]
        if not late:
            return ""
        why = late[0].readiness.message if late[0].readiness is not None else QUEUED
        return f"no replica became ready within {format_duration(within_s)}: {why}"

    async def _restart(self, each: ServiceReplica, within_s: float) -> None:
        why = each.readiness.message if each.readiness is not None else ""
        sentence = f"not ready for {format_duration(within_s)}: {why}"

        def build(draft: Draft) -> None:
            workload = draft.workload(each.workload.id)
            row = draft.replica(each.workload.id, 0)
            if workload is None or row is None or row.attempt != each.replica.attempt:
                return
            if row.state is ReplicaState.RUNNING:
                draft.note(Event(draft.now, "pool", Reason.SERVICE_NOT_READY, sentence, workload.id, 0))
                transitions.restart(draft, workload, row, None, sentence)

        await self._engine.transact(build)


def probe_of(service: Service, number: int) -> Probe:
    """Return the readiness check of a revision; of one that is forgotten, that of the present one."""
    known = {each.number: each.probe for each in service.revisions}
    return known.get(number) or known[service.current]


def owner_of(service: Service) -> Actor:
    """Return the owner of a service as the actor: its replicas belong to the owner."""
    return Actor(service.user, Role.MEMBER, "service", service.uid)


def replica_body(revision: Revision, name: str, project: str) -> dict[str, object]:
    """Return the request of a replica."""
    common = {key: value for key, value in revision.body.items() if key not in _OWN}
    return {**common, "kind": "service", "name": name, "project": project}
