"""The members of a gang: their roles, how many start together, and what the loss of one means."""

from __future__ import annotations

from collections.abc import Callable

from gpupool.domain.gang import Gang
from gpupool.domain.gpu import GpuRequest
from gpupool.domain.workload import Framework, OnMemberEnd, Role
from gpupool.specs.agreement import LAUNCHER
from gpupool.specs.containers import container_of_role
from gpupool.specs.models import RoleSpec, WorkloadRequest
from gpupool.specs.parts import GpuSpec

WORKER = "worker"
PARAMETER_SERVER = "ps"


def roles_of(request: WorkloadRequest, gpu_request: Callable[[GpuSpec], GpuRequest]) -> tuple[Role, ...]:
    """The roles that a request names, or that its framework has where it names none."""
    if request.roles:
        return tuple(_role(request, spec, gpu_request) for spec in request.roles)
    if request.gang is None:
        return ()
    if request.framework is Framework.MPI:
        return Role(LAUNCHER, 1, gpus=GpuRequest(count=0)), Role(WORKER, request.gang.workers)
    return (Role(WORKER, request.gang.workers),) if request.framework is Framework.TF else ()


def _role(request: WorkloadRequest, spec: RoleSpec, gpu_request: Callable[[GpuSpec], GpuRequest]) -> Role:
    return Role(
        name=spec.name,
        replicas=spec.replicas,
        argv=tuple(spec.command) or None,
        env=dict(spec.env),
        gpus=None if spec.gpus is None else gpu_request(spec.gpus),
        cpus=spec.cpus,
        memory_mib=spec.memory,
        restart=spec.restart,
        container=container_of_role(request, spec),
    )


def gang_of(request: WorkloadRequest, roles: tuple[Role, ...]) -> Gang | None:
    """How many start together; roles always do, all of them."""
    spec = request.gang
    total = sum(role.replicas for role in roles)
    mixed = len({(role.gpus, role.cpus, role.memory_mib) for role in roles}) > 1
    if spec is None:
        return Gang(total, total, mixed=mixed) if roles else None
    most = total or spec.workers
    least = most if spec.min in {None, spec.workers} else spec.min
    return Gang(least or most, most, spec.within or "", spec.strict, mixed)


def on_member_end(request: WorkloadRequest, roles: tuple[Role, ...]) -> OnMemberEnd:
    """What the loss of a member means: as asked, else as its framework can bear it."""
    return request.on_member_end or usual_end(request.framework, roles)


def usual_end(framework: Framework | None, roles: tuple[Role, ...]) -> OnMemberEnd:
    """What the loss of a member means where nothing is said."""
    if framework is None:
        return OnMemberEnd.CONTINUE
    served = framework is Framework.TF and any(role.name.lower() == PARAMETER_SERVER for role in roles)
    return OnMemberEnd.CONTINUE if served else OnMemberEnd.RESTART
