"""Apply Kubernetes manifests: compare the objects of a file with the workloads of the pool, and make the changes.

A Deployment is a service: it is changed in place, without ``force``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import DEFAULT_PROJECT, Actor
from gpupool.domain.work.service import Service
from gpupool.domain.work.workload import Workload, WorkloadState
from gpupool.services.control.engine import Engine
from gpupool.services.ports.store import WorkloadFilter
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.workloads.service import WaitFor, WorkloadService
from gpupool.services.workloads.submission import Prepared
from gpupool.specs.kubernetes.kinds import DEPLOYMENT, DIGEST_LABEL, KIND_LABEL
from gpupool.specs.kubernetes.manifests import Manifest, Manifests, Skipped, read_manifests
from gpupool.specs.kubernetes.report import Remark
from gpupool.specs.kubernetes.settings import PodSettings
from gpupool.specs.request import WorkloadRequest
from gpupool.specs.resubmit import request_of

REPLACE_TIMEOUT_S = 30.0  # in addition to the grace period, for the end of an object that is replaced
SUFFIX_LENGTH, SUFFIX_LETTERS = 5, "bcdfghjklmnpqrstvwxz2456789"
_LIVE = tuple(state for state in WorkloadState if not state.final)
_NOT_COMPARED = frozenset({"env", "workdir", "umask", "labels", "request_id"})


class Action(StrEnum):
    """The result for an object, in the terms of kubectl."""

    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"
    REPLACED = "replaced"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class ManifestOptions:
    """Options of ``apply``.

    ``env``, ``workdir`` and ``umask`` are defaults for programs that run as processes; the manifest overrides them.
    ``force``: an object that differs is stopped, deleted and created again. ``dry_run``: nothing is changed.
    """

    settings: PodSettings = field(default_factory=PodSettings)
    default_project: str = DEFAULT_PROJECT
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    umask: int | None = None
    force: bool = False
    dry_run: bool = False


class ServiceOperations(Protocol):
    """The operations on services that Deployments need; each raises ``GpupoolError``."""

    def find(self, actor: Actor, project: str, name: str) -> Service | None:
        """Return a service; None if there is none. Raises NAME_TAKEN if the actor may not change it."""

    async def check(self, actor: Actor, request: WorkloadRequest, existing: Service | None) -> None:
        """Raise if a request cannot create, or change, a service."""

    def differs(self, service: Service, request: WorkloadRequest, *, stopped: bool) -> bool:
        """Return whether the number of replicas, or whether it is stopped, differs from a request."""

    async def create(self, actor: Actor, request: WorkloadRequest, *, stopped: bool = False) -> Service:
        """Create a service."""

    async def update(self, actor: Actor, ref: str, request: WorkloadRequest, *, stopped: bool = False) -> Service:
        """Replace the definition of a service."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The result for one object; ``workload`` is None for a skipped object and for a dry run of a new one.

    ``service`` is that of a Deployment, under the same conditions.
    """

    kind: str
    name: str
    action: Action
    workload: Workload | None = None
    ended: bool = False
    service: Service | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    manifest: Manifest
    request: WorkloadRequest
    action: Action
    existing: Workload | None
    service: Service | None = None


class ManifestService:
    """Applies Kubernetes manifests. It checks the whole file first, and changes nothing if a part of it is wrong."""

    def __init__(
        self, engine: Engine, identities: IdentityCache, workloads: WorkloadService, services: ServiceOperations
    ) -> None:
        self._engine = engine
        self._identities = identities
        self._workloads = workloads
        self._services = services
        self._one_at_a_time = asyncio.Lock()  # two calls for the same object would both create it

    async def apply(
        self, actor: Actor, text: str, name: str, how: ManifestOptions
    ) -> tuple[list[Applied], tuple[Remark, ...]]:
        """Create or change the objects in ``text``; raises ``GpupoolError`` with line and column of each error."""
        settings = how.settings
        if settings.project is not None:
            self._identities.project(settings.project)
        settings = replace(settings, projects=frozenset(self._identities.projects))
        found = await asyncio.to_thread(read_manifests, text, name, settings)
        async with self._one_at_a_time:
            steps = [await self._step(actor, one, how) for one in found.objects]
            await self._check(actor, name, steps, how)
            done = await self._do_all(actor, name, steps, how)
        return _in_order(found, done), found.remarks

    async def _step(self, actor: Actor, manifest: Manifest, how: ManifestOptions) -> _Step:
        request = self._request(manifest, how)
        if manifest.kind is DEPLOYMENT:
            return self._service_step(actor, manifest, request)
        existing = None if manifest.generated else await self._existing(actor, manifest, request.project or "")
        if existing is None:
            return _Step(manifest, request, Action.CREATED, None)
        if existing.labels.get(DIGEST_LABEL) != manifest.digest:
            return _Step(manifest, request, Action.REPLACED, existing)
        waits = existing.suspended == manifest.suspended or existing.state.final
        return _Step(manifest, request, Action.UNCHANGED if waits else Action.CONFIGURED, existing)

    def _service_step(self, actor: Actor, manifest: Manifest, request: WorkloadRequest) -> _Step:
        found = None if manifest.generated else self._services.find(actor, request.project or "", request.name or "")
        if found is None:
            return _Step(manifest, request, Action.CREATED, None)
        same = found.revision(found.target).body.get("labels", {}).get(DIGEST_LABEL) == manifest.digest
        if same and not self._services.differs(found, request, stopped=manifest.suspended):
            return _Step(manifest, request, Action.UNCHANGED, None, found)
        return _Step(manifest, request, Action.CONFIGURED, None, found)

    def _request(self, manifest: Manifest, how: ManifestOptions) -> WorkloadRequest:
        request = manifest.request
        changes: dict[str, object] = {"project": request.project or how.default_project}
        if manifest.generated:
            changes["name"] = manifest.name + self._suffix()
        if request.image is None and all(role.image is None for role in request.roles):
            changes |= {"env": {**how.env, **request.env}, "workdir": request.workdir or how.workdir}
            changes |= {"umask": how.umask}
        return request.model_copy(update=changes)

    def _suffix(self) -> str:
        number, letters = self._engine.ports.random_bits(40), len(SUFFIX_LETTERS)
        return "".join(SUFFIX_LETTERS[number // letters**place % letters] for place in range(SUFFIX_LENGTH))

    async def _existing(self, actor: Actor, manifest: Manifest, project: str) -> Workload | None:
        wanted = WorkloadFilter(
            project=project,
            user=actor.user,
            name=manifest.name,
            labels=((KIND_LABEL, manifest.kind.name),),
            limit=1,
        )
        for workload in await self._engine.ports.store.list_workloads(wanted):
            return self._engine.mirror.workloads.get(workload.id, workload)
        return None

    async def _check(self, actor: Actor, name: str, steps: list[_Step], how: ManifestOptions) -> None:
        """Raise if a step is known to fail."""
        for step in steps:
            at = f"{name}:{step.manifest.line}:{step.manifest.column}"
            if step.action not in {Action.CREATED, Action.REPLACED} and not _changes_service(step):
                continue
            try:
                if step.manifest.kind is DEPLOYMENT:
                    await self._services.check(actor, step.request, step.service)
                    continue
                if step.existing is not None and not how.force:
                    raise await self._immutable(actor, step, step.existing)
                await self._workloads.submission.prepare(actor, step.request)
                await self._need_name(step)
            except GpupoolError as error:
                raise GpupoolError(error.code, f"{at}: {error.message}", error.hint) from error

    async def _need_name(self, step: _Step) -> None:
        """Raise NAME_TAKEN if another live workload of the project has the name, of any kind and any user."""
        wanted = WorkloadFilter(states=_LIVE, project=step.request.project, name=step.request.name, limit=1)
        for other in await self._engine.ports.store.list_workloads(wanted):
            if step.existing is None or other.id != step.existing.id:
                raise GpupoolError(
                    ErrorCode.NAME_TAKEN,
                    f"A live workload in project '{other.project}' already has the name '{other.name}'.",
                    "Choose another name, or stop that workload.",
                )

    async def _do_all(self, actor: Actor, name: str, steps: list[_Step], how: ManifestOptions) -> dict[int, Applied]:
        """Apply the steps in order; an error names the steps that were done before it."""
        done: dict[int, Applied] = {}
        for step in steps:
            try:
                done[id(step.manifest)] = await self._do(actor, step, how)
            except GpupoolError as error:
                at = f"{name}:{step.manifest.line}:{step.manifest.column}"
                before = ", ".join(f"{one.kind.lower()}/{one.name} {one.action}" for one in done.values())
                message = f"{at}: {error.message}" + (f" Done before: {before}." if before else "")
                raise GpupoolError(error.code, message, error.hint) from error
        return done

    async def _do(self, actor: Actor, step: _Step, how: ManifestOptions) -> Applied:
        kind, name = step.manifest.kind.name, step.request.name or ""
        if step.manifest.kind is DEPLOYMENT:
            return Applied(kind, name, step.action, service=await self._do_service(actor, step, how))
        existing = step.existing
        if step.action is Action.REPLACED and existing is not None and not how.dry_run:
            await self._remove(actor, existing)
        if how.dry_run or (step.action is Action.UNCHANGED and existing is not None):
            ended = step.action is Action.UNCHANGED and existing is not None and existing.state.final
            return Applied(kind, name, step.action, existing, ended)
        if step.action is Action.CONFIGURED and existing is not None:
            change = self._workloads.suspend if step.manifest.suspended else self._workloads.resume
            return Applied(kind, name, step.action, await change(actor, existing.id))
        return Applied(kind, name, step.action, await self._create(actor, step))

    async def _do_service(self, actor: Actor, step: _Step, how: ManifestOptions) -> Service | None:
        if how.dry_run or step.action is Action.UNCHANGED:
            return step.service
        stopped = step.manifest.suspended
        if step.service is None:
            return await self._services.create(actor, step.request, stopped=stopped)
        return await self._services.update(actor, step.service.id, step.request, stopped=stopped)

    async def _create(self, actor: Actor, step: _Step) -> Workload:
        submission = self._workloads.submission
        prepared = await submission.prepare(actor, step.request)
        if step.manifest.suspended:
            waiting = replace(prepared.workload, suspended=True, state=WorkloadState.SUSPENDED)
            prepared = Prepared(waiting, prepared.replicas, prepared.referred)
        return await submission.write(actor, prepared)

    async def _immutable(self, actor: Actor, step: _Step, existing: Workload) -> GpupoolError:
        """Return the error for an existing object that differs, with the differing fields."""
        new = request_of((await self._workloads.submission.prepare(actor, step.request)).workload)
        old = request_of(existing)
        differs = sorted(key for key in new.keys() | old.keys() if new.get(key) != old.get(key))
        named = [key for key in differs if key not in _NOT_COMPARED] or ["env"]
        kind = step.manifest.kind.resource
        return GpupoolError(
            ErrorCode.WRONG_STATE,
            f"{kind} '{existing.name}' already exists and differs in {', '.join(named)}, which cannot be changed.",
            "Use another name, delete it first, or apply with --force, which stops it and creates it again.",
        )

    async def _remove(self, actor: Actor, workload: Workload) -> None:
        if not workload.state.final:
            await self._workloads.stop(actor, workload.id)
            timeout_s = workload.limits.grace_s + REPLACE_TIMEOUT_S
            await self._workloads.wait(actor, workload.id, until=WaitFor.FINISHED, timeout_s=timeout_s)
        await self._workloads.delete(actor, workload.id)


def _changes_service(step: _Step) -> bool:
    return step.service is not None and step.action is Action.CONFIGURED


def _in_order(found: Manifests, done: Mapping[int, Applied]) -> list[Applied]:
    """Return the result for each object, in the order of the file."""
    placed: list[tuple[tuple[int, int], Applied]] = [((one.line, one.column), done[id(one)]) for one in found.objects]
    placed += [((one.line, one.column), _skipped(one)) for one in found.skipped]
    return [applied for _, applied in sorted(placed, key=lambda pair: pair[0])]


def _skipped(one: Skipped) -> Applied:
    return Applied(one.kind, one.name, Action.SKIPPED)
