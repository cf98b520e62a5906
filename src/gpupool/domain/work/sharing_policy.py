"""The choice of sharing mode and compute policy.

Precedence: the job, its project's default, the GPU's policy, the node's policy, the node's default. A contradiction
between a job or project and a policy is never resolved silently: the job goes to another GPU, or is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest, mentions_mig
from gpupool.domain.nodes.sharing import PART_MODES, ComputePolicy, Sharing, mode_of_whole, traits_of
from gpupool.domain.people.access import Project


def resolve_compute(asked: ComputePolicy | None, project: Project) -> ComputePolicy:
    """Return the compute policy of new work; raise ``GpupoolError(FORBIDDEN)`` if its project does not allow it."""
    if asked is not None:
        _need_allowed(asked, project.compute_allowed, project, "compute")
        return asked
    return project.compute_default or next(iter(project.compute_allowed), ComputePolicy.GUARANTEE)


def resolve_request(request: GpuRequest, project: Project) -> GpuRequest:
    """Return the request with the required sharing mode filled in (empty: the GPU decides).

    Raises ``GpupoolError(FORBIDDEN)`` for a mode that the project does not allow.
    """
    for mode in required_modes(request):
        _need_allowed(mode, project.sharing_allowed, project, "sharing")
    if request.sharing is not None and traits_of(request.sharing).partitioned:
        return replace(request, models=tuple(_with_mig(m) for m in request.models) or ("mig",))
    if request.sharing is not None or request.whole or request.count == 0:
        return request
    default = _slice_default(project)
    return request if default is None else replace(request, sharing=default)


def required_modes(request: GpuRequest) -> tuple[Sharing, ...]:
    """Return the modes that a request needs on every GPU."""
    if request.count == 0:
        return ()
    if request.sharing is not None:
        return (request.sharing,)
    if not request.whole:
        return ()
    instances = [mentions_mig(model) for model in request.models]
    found = [mode_of_whole(partitioned=True)] if any(instances) else []
    return tuple(found if found and all(instances) else [*found, mode_of_whole(partitioned=False)])


def slice_mode(asked: str, policy: str, offered: Sequence[str]) -> str | None:
    """Return the mode of a share on a GPU; None if this GPU does not suit.

    ``policy`` is the GPU's (or its node's), possibly empty. ``offered`` lists the node's modes, its default first;
    empty if unknown. An empty mode stands for the node's default.
    """
    wanted = asked or policy
    if policy and policy != wanted:
        return None
    if not traits_of(wanted).supports_parts or (wanted and offered and wanted not in offered):
        return None
    return wanted or (offered[0] if offered else "")


def check_project(project: Project) -> None:
    """Raise ``GpupoolError(INVALID_REQUEST)`` for a default that the project itself does not allow."""
    for what, default, allowed in (
        ("compute", project.compute_default, project.compute_allowed),
        ("sharing", project.sharing_default, project.sharing_allowed),
    ):
        if default is not None and allowed and default not in allowed:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"The project's default for {what} is {default}, which the project does not allow.",
                f"Allowed: {', '.join(allowed)}. Set both at once.",
            )
    if project.sharing_default is not None and not traits_of(project.sharing_default).supports_parts:
        *others, last = PART_MODES
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            f"The default mode applies to parts of GPUs; {project.sharing_default} does not support parts.",
            f"Use {', '.join(others)} or {last}. To forbid parts of GPUs, allow only whole.",
        )


def _slice_default(project: Project) -> Sharing | None:
    """Return the project's default mode for shares; raise FORBIDDEN if it allows none."""
    if project.sharing_default is not None:
        return project.sharing_default
    if not project.sharing_allowed:
        return None
    usable = [mode for mode in project.sharing_allowed if mode in PART_MODES]
    if not usable:
        raise GpupoolError(
            ErrorCode.FORBIDDEN,
            f"The project {project.name} does not allow parts of GPUs.",
            f"Request whole GPUs (-g 1); allowed: {', '.join(project.sharing_allowed)}.",
        )
    return usable[0]


def _with_mig(model: str) -> str:
    return model if mentions_mig(model) else f"{model} mig"


def _need_allowed(value: str, allowed: Sequence[str], project: Project, what: str) -> None:
    if allowed and value not in allowed:
        raise GpupoolError(
            ErrorCode.FORBIDDEN,
            f"The project {project.name} does not allow {what} {value}.",
            f"Allowed: {', '.join(allowed)}.",
        )
