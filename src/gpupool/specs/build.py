"""Conversion of a checked request to a workload and replicas, and of a replica to its command."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import PurePosixPath

from gpupool.domain.errors import ErrorCode
from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.units import WHOLE_GPU, fraction_to_permille
from gpupool.domain.work.gang import Gang
from gpupool.domain.work.program.container import ContainerNetwork, ContainerSpec, PullPolicy, Volume
from gpupool.domain.work.program.supervision import Stdio
from gpupool.domain.work.workload import (
    TTL_LABEL,
    Dependency,
    Framework,
    GangRole,
    Limits,
    OnMemberEnd,
    Program,
    Replica,
    RestartPolicy,
    Retry,
    SuccessPolicy,
    Workload,
    WorkloadKind,
)
from gpupool.specs.fields.containers import VolumeSpec
from gpupool.specs.fields.parts import Condition, GpuSpec, SweepSpec
from gpupool.specs.fields.request import LAUNCHER, RoleSpec, WorkloadRequest
from gpupool.specs.fields.sweep import Parameters, describe_parameters, draw, expand_grid, variable_of
from gpupool.specs.fields.templates import INDEX, as_text, fill, fill_index
from gpupool.specs.limits import MAX_BACKOFF
from gpupool.specs.text.error_messages import RequestError

DEFAULT_BACKOFF = 6
DEFAULT_SAME_LIMIT = 3  # immediate failures in a row with the same status, where no number of retries was requested
DEFAULT_UMASK = 0o022
WORKER = "worker"
PARAMETER_SERVER = "ps"
# The request's field of each attribute of ``Limits``: the same name without the unit.
LIMIT_FIELDS = {f.name: f.name.removesuffix("_s").removesuffix("_mib") for f in fields(Limits)}


@dataclass(frozen=True, slots=True)
class Submitter:
    """The submitting user, the account of the programs, and the time in seconds since the epoch.

    ``project`` is the default for requests without a project.
    """

    user: str
    uid: int | None
    project: str
    now: float


def references(request: WorkloadRequest) -> tuple[str, ...]:
    """Return the names and ids of other workloads in the request, which the caller must resolve."""
    named = [after.workload for after in request.after]
    return tuple(dict.fromkeys(named + ([request.on] if request.on else [])))


def to_workload(
    request: WorkloadRequest,
    *,
    id: WorkloadId,  # noqa: A002 - the workload's own field has this name
    submitter: Submitter,
    resolve: Callable[[str], WorkloadId] | Mapping[str, WorkloadId],
) -> tuple[Workload, tuple[Replica, ...]]:
    """Return the queued workload and its replicas.

    ``resolve`` returns the id for each of ``references(request)``; its errors (UNKNOWN_WORKLOAD) are passed on. A
    lease's lifetime becomes ``limits.max_time_s``: it counts from the grant, not from now. Raises
    ``GpupoolError(INVALID_REQUEST)`` for a working directory that is not absolute.
    """
    find = resolve.__getitem__ if isinstance(resolve, Mapping) else resolve
    parameters = expand(request.sweep, seed=id) if request.sweep is not None else ()
    roles = _roles_of(request)
    gang = _gang_of(request, roles)
    completions = len(parameters) or request.completions or request.parallelism or (gang.most if gang else 1)
    workload = Workload(
        id=id,
        name=request.name or automatic_name(request, id),
        kind=request.kind,
        project=request.project or submitter.project,
        user=submitter.user,
        uid=submitter.uid,
        program=_program(request),
        gpus=gpu_request(request.gpus),
        created_at=submitter.now,
        gang=gang,
        roles=roles,
        framework=request.framework,
        on_member_end=_on_member_end(request, roles),
        success_policy=request.success_policy or SuccessPolicy.ALL_WORKERS,
        processes=request.processes or 0,
        priority=request.priority,
        preemptible=_preemptible(request),
        limits=_limits(request),
        retry=_retry(request),
        completions=completions,
        parallelism=min(request.parallelism or completions, completions),
        parameters=parameters,
        windows=tuple(request.windows),
        after=tuple(
            Dependency(find(a.workload), a.condition is Condition.SUCCESS, a.condition is Condition.FAILURE)
            for a in request.after
        ),
        on=find(request.on) if request.on else None,
        on_index=request.on_index,
        labels=dict(request.labels) | ({} if request.ttl is None else {TTL_LABEL: "yes"}),
        mail=request.mail or "",
        request_id=request.request_id,
        request_digest=digest_of(request) if request.request_id is not None else "",
    )
    return workload, tuple(Replica(id, index, queued_at=submitter.now) for index in range(completions))


def digest_of(request: WorkloadRequest) -> str:
    """Return the SHA-256 of the request without its ``request_id``.

    Fields that have their default are left out: a later release with more fields gives the same digest.
    """
    asked = request.model_dump(mode="json", exclude_defaults=True, exclude={"request_id"})
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def expand(sweep: SweepSpec, *, seed: str) -> tuple[Parameters, ...]:
    """Return the sets of parameters, one per run; ``seed`` is the default for random draws."""
    if sweep.grid is not None:
        return expand_grid(sweep.grid)
    if sweep.random is not None:
        drawn = {name: spec.drawn() for name, spec in sweep.random.parameters.items()}
        return draw(drawn, sweep.random.samples, seed if sweep.random.seed is None else sweep.random.seed)
    return tuple(dict(row) for row in sweep.rows or ())


def program_for(workload: Workload, index: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command and environment of one replica.

    In a sweep all placeholders are replaced; other workloads with several replicas replace only ``{index}``; a single
    program's command is never changed. The environment also has the index, the number of replicas and the parameters,
    one by one and as JSON.
    """
    argv, env = workload.program.argv, dict(workload.program.env)
    env["GPUPOOL_INDEX"] = str(index)
    env["GPUPOOL_COMPLETIONS"] = str(workload.completions)
    place = workload.place_in_roles(index)
    if place is not None:
        role, number = place
        argv = argv if role.argv is None else role.argv
        env |= {**role.env, "GPUPOOL_ROLE": role.name, "GPUPOOL_ROLE_INDEX": str(number)}
    if workload.parameters:
        parameters = workload.parameters[index]
        values = {name: as_text(value) for name, value in parameters.items()}
        env.update({variable_of(name): value for name, value in values.items()})
        env["GPUPOOL_PARAMETERS"] = describe_parameters(parameters)
        return tuple(fill(argument, {**values, INDEX: str(index)}) for argument in argv), env
    if workload.completions > 1 and not workload.program.literal:
        return tuple(fill_index(argument, index) for argument in argv), env
    return argv, env


def automatic_name(request: WorkloadRequest, id: WorkloadId) -> str:  # noqa: A002 - see to_workload
    """Return a name with the program that is as unique as the id: ``train-3k9x2m4qp7``."""
    script = next((a for a in request.command[1:2] if a.endswith((".py", ".sh"))), None)
    program = script or (request.command[0] if request.command else request.kind.value)
    stem = re.sub(r"[^a-z0-9]+", "-", PurePosixPath(program).stem.lower()).strip("-")[:40].strip("-")
    return f"{stem or request.kind.value}-{id[1:]}"


def _program(request: WorkloadRequest) -> Program:
    if request.workdir and not request.workdir.startswith("/") and not request.tree and not request.workspace:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"'workdir' must be an absolute path, not '{request.workdir[:80]}'.",
            "Use an absolute path, beginning with /.",
            ("workdir",),
        )
    return Program(
        argv=tuple(request.command),
        env=dict(request.env),
        cwd=request.workdir,
        stdio=Stdio.TTY if request.tty else Stdio.PIPES if request.stdin else Stdio.BATCH,
        rows=request.rows,
        columns=request.columns,
        umask=DEFAULT_UMASK if request.umask is None else request.umask,
        client_bound=request.client_bound,
        linger_s=request.linger,
        tree=request.tree,
        lock=request.lock,
        git=request.git or "",
        env_from={name: source.value for name, source in request.env_from.items()},
        literal=request.literal,
        container=_container_of(request),
    )


def gpu_request(gpus: GpuSpec) -> GpuRequest:
    """Return the GPUs that a request, or one of its roles, asks for."""
    return GpuRequest(
        count=gpus.count,
        permille=WHOLE_GPU if gpus.fraction is None else fraction_to_permille(gpus.fraction),
        memory_mib=gpus.memory_mib,
        models=tuple(gpus.models),
        labels=tuple(sorted(gpus.labels.items())),
        sharing=gpus.sharing,
        placement=gpus.placement,
    )


def _limits(request: WorkloadRequest) -> Limits:
    given = {attribute: getattr(request, field) for attribute, field in LIMIT_FIELDS.items()}
    if request.lifetime is not None:
        given["max_time_s"] = request.lifetime
    return Limits(**{attribute: value for attribute, value in given.items() if value is not None})


def _retry(request: WorkloadRequest) -> Retry:
    if request.kind is WorkloadKind.SERVICE:
        return Retry(RestartPolicy.ALWAYS, MAX_BACKOFF if request.backoff_limit is None else request.backoff_limit)
    wanted = request.kind is WorkloadKind.TRAINING if request.backoff_limit is None else request.backoff_limit > 0
    policy = request.restart or (RestartPolicy.ON_FAILURE if wanted else RestartPolicy.NEVER)
    of_roles = any(role.restart not in {None, RestartPolicy.NEVER} for role in request.roles)
    if policy is RestartPolicy.NEVER and not of_roles:
        return Retry()
    if request.backoff_limit is None:
        return Retry(policy, DEFAULT_BACKOFF, DEFAULT_SAME_LIMIT)
    return Retry(policy, request.backoff_limit)


def _preemptible(request: WorkloadRequest) -> bool:
    return request.kind is WorkloadKind.TRAINING if request.preemptible is None else request.preemptible


def _roles_of(request: WorkloadRequest) -> tuple[GangRole, ...]:
    """Return the roles that a request names, or its framework's roles if it names none."""
    if request.roles:
        return tuple(_role(request, spec) for spec in request.roles)
    if request.gang is None:
        return ()
    if request.framework is Framework.MPI:
        return GangRole(LAUNCHER, 1, gpus=GpuRequest(count=0)), GangRole(WORKER, request.gang.workers)
    return (GangRole(WORKER, request.gang.workers),) if request.framework is Framework.TF else ()


def _role(request: WorkloadRequest, spec: RoleSpec) -> GangRole:
    return GangRole(
        name=spec.name,
        replicas=spec.replicas,
        argv=tuple(spec.command) or None,
        env=dict(spec.env),
        gpus=None if spec.gpus is None else gpu_request(spec.gpus),
        cpus=spec.cpus,
        memory_mib=spec.memory,
        restart=spec.restart,
        container=_container_of_role(request, spec),
    )


def _gang_of(request: WorkloadRequest, roles: tuple[GangRole, ...]) -> Gang | None:
    """Return how many members start together; with roles always all of them."""
    spec = request.gang
    total = sum(role.replicas for role in roles)
    mixed = len({(role.gpus, role.cpus, role.memory_mib) for role in roles}) > 1
    if spec is None:
        return Gang(total, total, mixed=mixed) if roles else None
    most = total or spec.workers
    least = most if spec.min in {None, spec.workers} else spec.min
    return Gang(least or most, most, spec.within or "", spec.strict, mixed, spec.mixed_models)


def _on_member_end(request: WorkloadRequest, roles: tuple[GangRole, ...]) -> OnMemberEnd:
    """Return the effect of a member's loss: as requested, else the framework's default."""
    return request.on_member_end or usual_end(request.framework, roles)


def usual_end(framework: Framework | None, roles: tuple[GangRole, ...]) -> OnMemberEnd:
    """Return the default effect of a member's loss."""
    if framework is None:
        return OnMemberEnd.CONTINUE
    served = framework is Framework.TF and any(role.name.lower() == PARAMETER_SERVER for role in roles)
    return OnMemberEnd.CONTINUE if served else OnMemberEnd.RESTART


def _container_of(request: WorkloadRequest) -> ContainerSpec | None:
    """Return the container of a checked request; None without an image."""
    if request.image is None:
        return None
    return _container(request, request.image, request.volumes, request.entrypoint)


def _container_of_role(request: WorkloadRequest, role: RoleSpec) -> ContainerSpec | None:
    """Return a role's own container; None: it has that of the request, or none."""
    image = role.image or request.image
    if image is None or (role.image, role.volumes, role.entrypoint) == (None, None, None):
        return None
    volumes = request.volumes if role.volumes is None else role.volumes
    return _container(request, image, volumes, request.entrypoint if role.entrypoint is None else role.entrypoint)


def _container(
    request: WorkloadRequest, image: str, volumes: Sequence[VolumeSpec], entrypoint: Sequence[str] | None
) -> ContainerSpec:
    return ContainerSpec(
        image=image,
        pull=request.pull or PullPolicy.MISSING,
        volumes=tuple(_volume_of(volume) for volume in volumes),
        entrypoint=None if entrypoint is None else tuple(entrypoint),
        user=request.container_user or "",
        network=request.network or ContainerNetwork.HOST,
        read_only=request.read_only,
        shm_mib=request.shm,
    )


def _volume_of(spec: VolumeSpec) -> Volume:
    """Convert a volume to the domain's type."""
    source = posixpath.normpath(spec.source) if spec.source else ""
    return Volume(posixpath.normpath(spec.target), source, spec.kind, spec.read_only, spec.size)
