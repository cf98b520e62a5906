"""Service operations: create, scale, update, undo, stop and delete services."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Reason
from gpupool.domain.ids import ID_BITS, check_name, service_id
from gpupool.domain.people.access import DEFAULT_PROJECT, Actor, Role, secret_hash
from gpupool.domain.protocol.gateway_table import is_port_host
from gpupool.domain.work.service import (
    MAX_SERVICE_NAME,
    MAX_TOKENS,
    Revision,
    Service,
    ServiceState,
    check_scale,
    previous,
    retarget,
    with_revision,
)
from gpupool.domain.work.workload import Serving, WorkloadKind
from gpupool.services.access.permissions import Permissions, forbidden
from gpupool.services.control.engine import Engine
from gpupool.services.ports.store import ChangeSet
from gpupool.services.serving.autoscaler import Scaler
from gpupool.services.serving.controller import ServiceController, ServiceReplica, Status, replica_body
from gpupool.services.serving.ready_estimate import AskWhy
from gpupool.services.serving.routes import OtherRoutes, RouteTable
from gpupool.services.serving.usage import TokenShare, shares_of
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.state.mirror import Draft
from gpupool.services.state.service_registry import ServiceRegistry
from gpupool.services.workloads.submission import SubmissionService
from gpupool.specs.fields.service import ServiceSpec
from gpupool.specs.request import WorkloadRequest, parse_request

MAX_PER_PROJECT = 200
END_HINT = "Wait until its requests and replicas have ended, and try again."
TOKEN_PREFIX = "gps"  # noqa: S105 - the beginning of tokens of services, no secret


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A service with its state, replicas, status, and use by token."""

    service: Service
    state: ServiceState
    desired: int
    replicas: list[ServiceReplica]
    status: Status
    usage: list[TokenShare]

    def replica_counts(self) -> list[tuple[str, int]]:
        """Return the number of ready, starting and draining replicas."""
        draining = sum(each.view.draining_s is not None for each in self.replicas)
        ready = sum(each.view.ready and each.view.draining_s is None for each in self.replicas)
        return [("ready", ready), ("starting", len(self.replicas) - ready - draining), ("draining", draining)]


class ServingService:
    """Operations on services; each takes the actor. Members of its project see a service, its managers change it."""

    def __init__(
        self,
        engine: Engine,
        registry: ServiceRegistry,
        identities: IdentityCache,
        permissions: Permissions,
        submission: SubmissionService,
        controller: ServiceController,
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._identities = identities
        self._permissions = permissions
        self._submission = submission
        self.controller = controller
        self.routes = RouteTable(engine, identities, permissions)
        engine.on_commit(registry.note)
        engine.on_commit(self._note)

    def _note(self, changes: ChangeSet) -> None:
        if changes.services or any(each.program.serving for each in changes.workloads):
            self.controller.wake()

    async def run(self, ports: OtherRoutes) -> None:
        """Reconcile services for ever. ``ports`` returns the routes of opened ports."""
        await self.controller.run(self.routes, ports)

    async def estimate(self, why: AskWhy) -> None:
        """Estimate for ever when held requests can be answered."""
        await self.controller.estimate(why)

    async def talk(self) -> None:
        """Keep the connection to the gateway for ever."""
        gateway = self._engine.ports.gateway
        if gateway is None:
            await asyncio.Event().wait()
        else:
            await gateway.run(self.controller.take)

    # Reading

    def all(self, actor: Actor) -> list[Service]:
        """Return the services that the actor may see, by project and name."""
        rows = [row for row in self._registry.rows.values() if self._may_see(actor, row)]
        return sorted(rows, key=lambda row: (row.project, row.name))

    def _may_see(self, actor: Actor, row: Service) -> bool:
        project = self._identities.projects.get(row.project)
        member = project is not None and self._permissions.can_submit(actor, project)
        return member or self.may_manage(actor, row)

    def may_manage(self, actor: Actor, row: Service) -> bool:
        """Return whether the actor may change a service and read its command and output."""
        return self._permissions.can_manage_of(actor, row.user, row.project)

    def get(self, actor: Actor, ref: str) -> Service:
        """Return a service by name, PROJECT/NAME (PROJECT:NAME in addresses) or id.

        Raises ``GpupoolError``: UNKNOWN_SERVICE, INVALID_NAME if several projects have one with this name.
        """
        found = [row for row in self.all(actor) if ref in {row.name, row.key, row.key.replace("/", ":"), row.id}]
        own = [row for row in found if row.user == actor.user]
        if not found:
            raise GpupoolError(
                ErrorCode.UNKNOWN_SERVICE, f"There is no service '{ref[:80]}'.", "See `gpupool service list`."
            )
        if len(found) > 1 and len(own) != 1:
            keys = ", ".join(row.key for row in found[:5])
            raise GpupoolError(
                ErrorCode.INVALID_NAME, f"Several projects have a service '{ref}'.", f"Give the project too: {keys}."
            )
        return found[0] if len(found) == 1 else own[0]

    def views(self) -> list[ServiceStatus]:
        """Return all services, for metrics."""
        return [self.view(row) for row in self._registry.rows.values()]

    def view(self, service: Service) -> ServiceStatus:
        """Return a service with its state and replicas."""
        control = self.controller
        row = self._registry.rows.get(service.id, service)
        status = control.status(row)
        usage = shares_of(status.tokens, status.gpu_s, lambda digest: self.routes.holder(row, digest))
        return ServiceStatus(row, control.state(row), control.desired(row), control.replicas(row), status, usage)

    def url(self, service: Service) -> str | None:
        """Return the address of a service; None without a gateway."""
        gateway = self._engine.ports.gateway
        base = None if gateway is None else gateway.url
        return None if base is None else f"{base}/s/{service.key}/"

    def _managed(self, actor: Actor, ref: str) -> Service:
        service = self.get(actor, ref)
        if not self.may_manage(actor, service):
            raise forbidden(f"The service {service.name} belongs to {service.user}.")
        return service

    # Changes

    def find(self, actor: Actor, project: str, name: str) -> Service | None:
        """Return a service; None if there is none. Raises NAME_TAKEN if the actor may not change it."""
        found = self._registry.find(project, name)
        if found is not None and not self.may_manage(actor, found):
            raise _taken(project, name)
        return found

    async def check(self, actor: Actor, request: WorkloadRequest, existing: Service | None) -> None:
        """Raise ``GpupoolError`` if a request cannot create, or change, a service."""
        row = existing or self._new(actor, request)
        spec = _spec(request)
        await self._check(actor, row, _revision(request, spec, actor, self._engine.ports.clock.now()))
        self._check_routes(actor, replace(row, routing=spec.routing(row.routing.tokens)))

    @staticmethod
    def differs(service: Service, request: WorkloadRequest, *, stopped: bool) -> bool:
        """Return whether the number of replicas, or whether it is stopped, differs from a request."""
        scale = _spec(request).scale_policy()
        numbers = (service.scale.least, service.scale.most)
        return service.stopped != stopped or numbers != (scale.least, scale.most)

    def _new(self, actor: Actor, request: WorkloadRequest) -> Service:
        """Return the row of a new service. Raises FORBIDDEN, INVALID_NAME, UNKNOWN_PROJECT."""
        project = self._identities.project(request.project or DEFAULT_PROJECT)
        self._permissions.need_project(actor, project)
        name = request.name or ""
        check_service_name(name)
        spec = _spec(request)
        now = self._engine.ports.clock.now()
        return Service(
            id=service_id(self._engine.ports.random_bits(ID_BITS)),
            name=name,
            project=project.name,
            user=actor.user,
            uid=actor.uid,
            created_at=now,
            revisions=(_revision(request, spec, actor, now),),
            scale=spec.scale_policy(),
            update=spec.update_policy(),
            routing=spec.routing(),
            changed_at=now,
        )

    async def create(self, actor: Actor, request: WorkloadRequest, *, stopped: bool = False) -> Service:
        """Create a service and start its first replicas, unless it is created ``stopped``.

        Raises FORBIDDEN, NAME_TAKEN, INVALID_NAME, INVALID_REQUEST, OVER_LIMIT, and the errors of a submission.
        """
        row = replace(self._new(actor, request), stopped=stopped)
        await self._check(actor, row, row.revisions[0])

        def write(draft: Draft) -> None:
            if self._registry.find(row.project, row.name) is not None:
                raise _taken(row.project, row.name)
            if sum(each.project == row.project for each in self._registry.rows.values()) >= MAX_PER_PROJECT:
                raise GpupoolError(
                    ErrorCode.OVER_LIMIT, f"{row.project} has {MAX_PER_PROJECT} services already.", "Delete some."
                )
            self._check_routes(actor, row)
            self._put(draft, actor, row, "is created")

        await self._engine.transact(write)
        if not stopped:
            self._begin(row)
        return row

    async def _check(self, actor: Actor, row: Service, revision: Revision) -> None:
        """Raise ``GpupoolError`` if a replica could never start."""
        body = replica_body(revision, f"{row.name}-r0-0", row.project)
        serving = Serving(row.id, revision.number, revision.port, revision.port_env)
        owner = actor if actor.user == row.user else replace(actor, user=row.user, uid=row.uid)
        await self._submission.prepare_replica(owner, parse_request(body), serving, protected=True)

    def _check_routes(self, actor: Actor, row: Service) -> None:
        """Raise NAME_TAKEN if another service has a host or, for the same users, a model of this one.

        Raises FORBIDDEN for a new host name if the actor is no administrator: the service gets all requests for that
        name, also those for paths of other services.
        """
        before = self._registry.rows.get(row.id)
        added = set(row.routing.hosts) - set(() if before is None else before.routing.hosts)
        if added and not actor.role.includes(Role.ADMIN):
            raise forbidden(f"Only administrators give a service a host name, such as {min(added)}.")
        if reserved := sorted(filter(is_port_host, added)):
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"hosts: {reserved[0]} is reserved for the port of a workload.",
                "Choose another host name.",
            )
        for other in self._registry.rows.values():
            if other.id == row.id:
                continue
            hosts = set(other.routing.hosts) & set(row.routing.hosts)
            models = set(other.routing.models) & set(row.routing.models) if other.project == row.project else set()
            if taken := sorted(hosts or models):
                what = "host" if hosts else "model"
                raise GpupoolError(
                    ErrorCode.NAME_TAKEN,
                    f"The {what} {taken[0]} belongs to another service.",
                    f"Choose another {what}." if hosts else f"Choose another model name, or stop {other.name}.",
                )

    def _begin(self, row: Service) -> None:
        """Start with at least one replica, so that the user sees if it becomes ready."""
        status = self.controller.status(row)
        status.scaler = Scaler(max(1, row.scale.least))
        status.retry_at = 0.0
        self.controller.wake()

    async def scale(self, actor: Actor, ref: str, least: int, most: int) -> Service:
        """Set the number of replicas; a stopped service starts again."""

        def change(row: Service) -> Service:
            return replace(row, scale=check_scale(replace(row.scale, least=least, most=most)), stopped=False)

        before = self._managed(actor, ref)
        numbers = str(least) if least == most else f"{least} to {most}"
        row = await self._change(actor, before, change, f"has {numbers} replicas")
        if before.stopped:
            self._begin(row)
        return row

    async def update(self, actor: Actor, ref: str, request: WorkloadRequest, *, stopped: bool = False) -> Service:
        """Replace the definition. Another program is a new revision, to which replicas change one by one."""
        before = self._managed(actor, ref)
        spec = _spec(request)
        now = self._engine.ports.clock.now()
        revision = _revision(request, spec, actor, now)
        await self._check(actor, before, revision)

        def change(row: Service) -> Service:
            after = replace(
                row,
                scale=spec.scale_policy(),
                update=spec.update_policy(),
                routing=spec.routing(row.routing.tokens),
                stopped=stopped,
            )
            self._check_routes(actor, after)
            latest = row.revision(row.target)
            if not revision.same_program(latest):
                return replace(with_revision(after, revision), stopped=stopped)
            kept = tuple(replace(each, body=revision.body) if each is latest else each for each in row.revisions)
            return replace(after, revisions=kept)

        row = await self._change(actor, before, change, "is updated")
        if before.stopped and not stopped:
            self._begin(row)
        return row

    async def undo(self, actor: Actor, ref: str, revision: int | None = None) -> Service:
        """Change back to the revision before, or to ``revision``; an update in progress ends."""

        def change(row: Service) -> Service:
            number = previous(row) if revision is None else revision
            return retarget(row, number, self._engine.ports.clock.now())

        return await self._change(actor, self._managed(actor, ref), change, "changes to an earlier revision")

    async def stop(self, actor: Actor, ref: str) -> Service:
        """Stop all replicas; the definition stays, and ``scale`` starts it again."""
        before = self._managed(actor, ref)
        return await self._change(actor, before, lambda row: replace(row, stopped=True), "is stopped")

    async def stop_all(self, actor: Actor) -> None:
        """Stop all services of all users, for administrators."""
        self._permissions.need_role(actor, Role.ADMIN)

        def write(draft: Draft) -> None:
            for row in self._registry.rows.values():
                if not row.stopped:
                    self._put(draft, actor, replace(row, stopped=True), "is stopped")

        await self._engine.transact(write)
        self.controller.wake()

    async def delete(self, actor: Actor, ref: str) -> None:
        """Delete a stopped service with its revisions. Raises WRONG_STATE if it is not stopped."""
        service = self._managed(actor, ref)
        event = self._engine.change_event(
            actor.user, f"service {service.name} is deleted", f"service {service.id}", Reason.SERVICE_CHANGED
        )

        async def write() -> None:
            row = self._registry.rows.get(service.id)
            if row is None:
                return
            if not row.stopped or self._engine.mirror.service_replicas.get(row.id):
                stop = f"Run `gpupool service stop {row.name}`."
                state, hint = ("has replicas that end", END_HINT) if row.stopped else ("is not stopped", stop)
                raise GpupoolError(ErrorCode.WRONG_STATE, f"The service {row.name} {state}.", hint)
            await self._engine.ports.store.services.delete(row.id, event)
            del self._registry.rows[row.id]

        await self._engine.run_exclusive(write)
        self.controller.wake()

    async def add_token(self, actor: Actor, ref: str) -> tuple[Service, str]:
        """Create a token of a service; return its secret, which is not stored."""
        secret = f"{TOKEN_PREFIX}_{secrets.token_urlsafe(32)}"

        def change(row: Service) -> Service:
            if len(row.routing.tokens) >= MAX_TOKENS:
                raise GpupoolError(
                    ErrorCode.OVER_LIMIT, f"{row.name} has {MAX_TOKENS} tokens already.", "Delete all of them first."
                )
            return replace(row, routing=replace(row.routing, tokens=(*row.routing.tokens, secret_hash(secret))))

        return await self._change(actor, self._managed(actor, ref), change, "has a new token"), secret

    async def delete_tokens(self, actor: Actor, ref: str) -> Service:
        """Delete all tokens of a service."""
        before = self._managed(actor, ref)
        return await self._change(
            actor, before, lambda row: replace(row, routing=replace(row.routing, tokens=())), "has no tokens any more"
        )

    async def _change(self, actor: Actor, service: Service, change: Callable[[Service], Service], what: str) -> Service:
        def write(draft: Draft) -> Service:
            row = self._registry.rows.get(service.id)
            if row is None:
                raise GpupoolError(ErrorCode.UNKNOWN_SERVICE, f"{service.name} was deleted.", "Create it again.")
            after = change(row)
            if after != row:
                self._put(draft, actor, after, what)
            return after

        row = await self._engine.transact(write)
        self._engine.wake(None)
        self.controller.status(row).retry_at = 0.0
        self.controller.wake()
        return row

    def _put(self, draft: Draft, actor: Actor, row: Service, what: str) -> None:
        draft.put_service(row)
        event = self._engine.change_event(
            actor.user, f"service {row.name} {what}", f"service {row.id}", Reason.SERVICE_CHANGED
        )
        draft.note(event)

    def definition(self, service: Service) -> dict[str, Any]:
        """Return the request that creates an equal service."""
        body = dict(service.revision(service.target).body)
        scale = service.scale
        numbers = str(scale.least) if scale.least == scale.most else f"{scale.least}..{scale.most}"
        spec = {**body.get("service", {}), "replicas": numbers}
        return {**body, "kind": "service", "name": service.name, "project": service.project, "service": spec}


def check_service_name(name: str) -> None:
    """Raise INVALID_NAME if a service cannot have this name: it is a part of addresses and of replicas' names."""
    check_name(name, "service")
    if len(name) > MAX_SERVICE_NAME:
        raise GpupoolError(
            ErrorCode.INVALID_NAME,
            f"'{name[:80]}' is too long for a service.",
            f"Use up to {MAX_SERVICE_NAME} characters.",
        )


def _taken(project: str, name: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.NAME_TAKEN,
        f"The project {project} has a service '{name}' already.",
        f"Change it with `gpupool service update {name}`, or choose another name.",
    )


def _spec(request: WorkloadRequest) -> ServiceSpec:
    if request.kind is not WorkloadKind.SERVICE:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"The kind is {request.kind.value}, not service.", "Write `kind: service`."
        )
    return request.service or ServiceSpec()


def _revision(request: WorkloadRequest, spec: ServiceSpec, actor: Actor, now: float) -> Revision:
    body = {key: value for key, value in request.to_body().items() if key not in {"name", "project", "request_id"}}
    return Revision(1, now, actor.user, body, spec.port, spec.port_env, spec.probe())
