"""From a checked request to the workload and replicas that the pool keeps, and on to what a replica executes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from gpupool.domain.errors import ErrorCode
from gpupool.domain.gpu import GpuRequest
from gpupool.domain.ids import WorkloadId
from gpupool.domain.supervision import Stdio
from gpupool.domain.units import WHOLE_GPU, fraction_to_permille
from gpupool.domain.workload import (
    TTL_LABEL,
    Dependency,
    Limits,
    Program,
    Replica,
    RestartPolicy,
    Retry,
    Workload,
    WorkloadKind,
)
from gpupool.specs.containers import container_of
from gpupool.specs.members import gang_of, on_member_end, roles_of
from gpupool.specs.models import WorkloadRequest
from gpupool.specs.parts import Condition, GpuSpec, SweepSpec
from gpupool.specs.problems import RequestError
from gpupool.specs.sweep import Parameters, describe_parameters, draw, expand_grid, variable_of
from gpupool.specs.templates import INDEX, as_text, fill, fill_index

DEFAULT_BACKOFF = 6
DEFAULT_GRACE_S = 10.0
DEFAULT_LOG_LIMIT_MIB = 64
DEFAULT_UMASK = 0o022


@dataclass(frozen=True, slots=True)
class Submitter:
    """Who asks and when: the user, the account its programs run as, and seconds since the epoch.

    ``project`` is used where the request names none.
    """

    user: str
    uid: int | None
    project: str
    now: float


def references(request: WorkloadRequest) -> tuple[str, ...]:
    """Names and ids of other workloads that the request speaks of, for the caller to look up beforehand."""
    named = [after.workload for after in request.after]
    return tuple(dict.fromkeys(named + ([request.on] if request.on else [])))


def to_workload(
    request: WorkloadRequest,
    *,
    id: WorkloadId,  # noqa: A002 - the workload's own field has this name
    submitter: Submitter,
    resolve: Callable[[str], WorkloadId] | Mapping[str, WorkloadId],
) -> tuple[Workload, tuple[Replica, ...]]:
    """The queued workload and its replicas.

    ``resolve`` gives the id of each of ``references(request)``; what it raises (UNKNOWN_WORKLOAD) passes through.
    A lease's lifetime becomes ``limits.max_time_s``: it counts from the grant, not from now.
    Raises ``GpupoolError(INVALID_REQUEST)`` for a working directory that is not absolute.
    """
    find = resolve.__getitem__ if isinstance(resolve, Mapping) else resolve
    parameters = expand(request.sweep, seed=id) if request.sweep is not None else ()
    roles = roles_of(request, gpu_request)
    gang = gang_of(request, roles)
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
        on_member_end=on_member_end(request, roles),
        processes=request.processes or 0,
        priority=request.priority,
        preemptible=_preemptible(request),
        limits=_limits(request),
        retry=_retry(request),
        completions=completions,
        parallelism=min(request.parallelism or completions, completions),
        parameters=parameters,
        windows=tuple(request.windows),
        after=tuple(Dependency(find(a.workload), a.condition is Condition.SUCCESS) for a in request.after),
        on=find(request.on) if request.on else None,
        on_index=request.on_index,
        labels=dict(request.labels) | ({} if request.ttl is None else {TTL_LABEL: "yes"}),
        request_id=request.request_id,
    )
    return workload, tuple(Replica(id, index, queued_at=submitter.now) for index in range(completions))


def expand(sweep: SweepSpec, *, seed: str) -> tuple[Parameters, ...]:
    """The sets of parameters, one per run; ``seed`` is used for random draws that name none of their own."""
    if sweep.grid is not None:
        return expand_grid(sweep.grid)
    if sweep.random is not None:
        drawn = {name: spec.drawn() for name, spec in sweep.random.parameters.items()}
        return draw(drawn, sweep.random.samples, seed if sweep.random.seed is None else sweep.random.seed)
    return tuple(dict(row) for row in sweep.rows or ())


def program_for(workload: Workload, index: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command and environment of one replica.

    Placeholders are filled in a sweep; where there are several replicas without one, only ``{index}`` is; the command
    of a single program is never touched. The environment also tells the index, the number of replicas and the
    parameters, each and as JSON.
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
    """A name that tells the program and is as unique as the id: ``train-3k9x2m4qp7``."""
    script = next((a for a in request.command[1:2] if a.endswith((".py", ".sh"))), None)
    program = script or (request.command[0] if request.command else request.kind.value)
    stem = re.sub(r"[^a-z0-9]+", "-", PurePosixPath(program).stem.lower()).strip("-")[:40].strip("-")
    return f"{stem or request.kind.value}-{id[1:]}"


def _program(request: WorkloadRequest) -> Program:
    if request.workdir and not request.workdir.startswith("/") and not request.tree:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"'workdir' must be a path from the root, not '{request.workdir[:80]}'.",
            "Write the folder's whole path, beginning with /.",
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
        tree=request.tree,
        lock=request.lock,
        env_from={name: source.value for name, source in request.env_from.items()},
        literal=request.literal,
        container=container_of(request),
    )


def gpu_request(gpus: GpuSpec) -> GpuRequest:
    """The GPUs that a request, or one of its roles, asks for."""
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
    return Limits(
        wait_s=request.wait,
        max_time_s=request.lifetime if request.lifetime is not None else request.max_time,
        idle_timeout_s=request.idle_timeout,
        grace_s=DEFAULT_GRACE_S if request.grace is None else request.grace,
        notice_signal=request.notice_signal,
        cpus=request.cpus,
        memory_mib=request.memory,
        log_limit_mib=request.log_limit or DEFAULT_LOG_LIMIT_MIB,
        ttl_s=request.ttl,
    )


def _retry(request: WorkloadRequest) -> Retry:
    wanted = request.kind is WorkloadKind.TRAINING if request.backoff_limit is None else request.backoff_limit > 0
    policy = request.restart or (RestartPolicy.ON_FAILURE if wanted else RestartPolicy.NEVER)
    of_roles = any(role.restart not in {None, RestartPolicy.NEVER} for role in request.roles)
    if policy is RestartPolicy.NEVER and not of_roles:
        return Retry()
    return Retry(policy, DEFAULT_BACKOFF if request.backoff_limit is None else request.backoff_limit)


def _preemptible(request: WorkloadRequest) -> bool:
    return request.kind is WorkloadKind.TRAINING if request.preemptible is None else request.preemptible
