"""Conversion of a workload back to a request that creates an equal one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.nodes.sharing import ComputePolicy
from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.gang import Gang
from gpupool.domain.work.program.supervision import Stdio
from gpupool.domain.work.workload import (
    TTL_LABEL,
    GangRole,
    Limits,
    Program,
    RestartPolicy,
    Retry,
    SuccessPolicy,
    Workload,
    WorkloadKind,
)
from gpupool.specs.build import (
    DEFAULT_UMASK,
    LIMIT_FIELDS,
    automatic_name,
    usual_end,
)
from gpupool.specs.fields.containers import container_body
from gpupool.specs.fields.request import WorkloadRequest
from gpupool.specs.fields.sweep import expand_grid, grid_size

Values = dict[str, Any]
MAX_GRID_VALUES = 1_000  # values of one parameter that are compared


def request_of(workload: Workload) -> Values:
    """Return the plain values of a request for an equal workload, without defaults.

    Random values of a sweep are kept as a list of parameter sets. A program bound to its starting terminal becomes an
    unbound one. Generated names are left out. Limits that the project had set are included: the workload ran under
    them.
    """
    body: Values = {"kind": _kind(workload.kind).value, "project": workload.project}
    body |= _program(workload.program) if workload.kind is not WorkloadKind.LEASE else {}
    body |= {"name": workload.name} if workload.name != _made_name(workload) else {}
    body |= gpu_body(workload.gpus, workload.compute) if workload.kind is not WorkloadKind.EXEC else {}
    body |= _course(workload) | _limits(workload) | _replicas(workload)
    told = {field: value for field, value in body.items() if value not in (None, "", [], {}, ())}
    return told | container_body(workload.program.container)


def _kind(kind: WorkloadKind) -> WorkloadKind:
    return WorkloadKind.INTERACTIVE if kind is WorkloadKind.RUN else kind


def _made_name(workload: Workload) -> str:
    stub = WorkloadRequest.model_construct(command=list(workload.program.argv), kind=workload.kind)
    return automatic_name(stub, workload.id)


def _program(program: Program) -> Values:
    tty = program.stdio is Stdio.TTY
    return {
        "command": list(program.argv),
        "env": dict(program.env),
        "env_from": dict(program.env_from),
        "literal": program.literal or None,
        "workdir": program.cwd,
        "workspace": program.workspace or None,
        "git": program.git or None,
        "tty": tty or None,
        "stdin": program.stdio is Stdio.PIPES or None,
        "umask": None if program.umask == DEFAULT_UMASK else f"{program.umask:03o}",
    }


def gpu_body(gpus: GpuRequest, compute: ComputePolicy) -> Values:
    """Return the field ``gpus`` of a request."""
    whole = gpus.permille == WHOLE_GPU or gpus.memory_mib is not None
    asked = {
        "count": gpus.count if gpus.count != 1 else None,
        "fraction": None if whole else gpus.permille / WHOLE_GPU,
        "memory_mib": gpus.memory_mib,
        "models": list(gpus.models),
        "labels": dict(gpus.labels),
        "compute": None if compute is ComputePolicy.GUARANTEE else compute.value,
        "sharing": gpus.sharing.value if gpus.sharing else None,
        "placement": gpus.placement.value if gpus.placement else None,
    }
    return {"gpus": {field: value for field, value in asked.items() if value not in (None, [], {})}}


def _course(workload: Workload) -> Values:
    training = workload.kind is WorkloadKind.TRAINING
    retry = workload.retry
    usual = RestartPolicy.ON_FAILURE if training else RestartPolicy.NEVER
    return {
        "priority": workload.priority or None,
        "preemptible": workload.preemptible if workload.preemptible != training else None,
        "restart": retry.policy.value if retry.policy is not usual else None,
        "backoff_limit": _backoff(retry),
        "after": [{"workload": d.workload, "condition": d.condition} for d in workload.after],
        "windows": list(workload.windows),
        "labels": {name: value for name, value in workload.labels.items() if name != TTL_LABEL},
        "mail": workload.mail or None,
        "on": workload.on,
        "on_index": workload.on_index or None,
    }


def _backoff(retry: Retry) -> int | None:
    """Return the number of retries that was requested; None for the default."""
    return None if retry.policy is RestartPolicy.NEVER or retry.same_limit else retry.backoff_limit


def _limits(workload: Workload) -> Values:
    limits, usual = workload.limits, Limits()
    names = LIMIT_FIELDS | ({"max_time_s": "lifetime"} if workload.kind is WorkloadKind.LEASE else {})
    told = ((field, getattr(limits, name), getattr(usual, name)) for name, field in names.items())
    return {field: value for field, value, default in told if value != default}


def _replicas(workload: Workload) -> Values:
    gang = workload.gang
    if workload.roles:
        asked = {} if gang is None or gang == Gang(gang.most, gang.most, mixed=gang.mixed) else {"gang": _gang(gang)}
        return _framework(workload) | {"roles": [_role(role) for role in workload.roles]} | asked
    if gang is not None:
        return _framework(workload) | {"gang": _gang(gang)}
    several = workload.completions > 1
    if workload.parameters:
        parallel = workload.parallelism if workload.parallelism != len(workload.parameters) else None
        return {"sweep": _sweep(workload.parameters), "parallelism": parallel}
    return {
        "completions": workload.completions if several else None,
        "parallelism": workload.parallelism if several and workload.parallelism != workload.completions else None,
    }


def _framework(workload: Workload) -> Values:
    usual = usual_end(workload.framework, workload.roles)
    return {
        "framework": workload.framework.value if workload.framework else None,
        "on_member_end": workload.on_member_end.value if workload.on_member_end is not usual else None,
        "success_policy": None
        if workload.success_policy is SuccessPolicy.ALL_WORKERS
        else workload.success_policy.value,
        "processes": workload.processes or None,
    }


def _gang(gang: Gang) -> Values:
    spec = {
        "workers": gang.most,
        "min": gang.least if gang.least != gang.most else None,
        "within": gang.within,
        "strict": gang.strict,
        "mixed_models": gang.mixed_models,
    }
    return {name: value for name, value in spec.items() if value}


def _role(role: GangRole) -> Values:
    told = {
        "command": list(role.argv or ()),
        "env": dict(role.env),
        "cpus": role.cpus,
        "memory": role.memory_mib,
        "restart": role.restart.value if role.restart else None,
    }
    gpus = gpu_body(role.gpus, ComputePolicy.GUARANTEE) if role.gpus is not None else {}
    own = {k: v for k, v in container_body(role.container).items() if k in {"image", "volumes", "entrypoint"}}
    return {"name": role.name, "replicas": role.replicas, **{k: v for k, v in told.items() if v}, **gpus, **own}


def _sweep(parameters: tuple[dict[str, Any], ...]) -> Values:
    """Return a grid if the sets are all combinations in their order; else the sets themselves."""
    names = list(parameters[0])
    if all(list(row) == names for row in parameters):
        grid = {name: _different(row[name] for row in parameters) for name in names}
        if grid_size(grid) == len(parameters) and expand_grid(grid) == parameters:
            return {"grid": grid}
    return {"list": [dict(row) for row in parameters]}


def _different(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if not any(type(value) is type(old) and value == old for old in found):
            found.append(value)
            if len(found) > MAX_GRID_VALUES:
                break
    return found
