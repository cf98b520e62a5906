"""Which sharing mode and compute policy work gets, and what that guarantees.

The order of who decides: the job, else its project's default, else the GPU's policy, else the node's policy, else what
the node does by itself. A job's or project's word and a policy that contradict each other are never reconciled
silently: the job goes elsewhere, or is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpupool.domain.access import Project
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import ComputePolicy, GpuRequest, Sharing, speaks_of_mig

POLICIES = (Sharing.WHOLE, Sharing.SHARE, Sharing.MPS, Sharing.ADVISORY)  # what an administrator may set for GPUs


def settled_compute(asked: ComputePolicy | None, project: Project) -> ComputePolicy:
    """The compute policy of new work of a project; raises ``GpupoolError(FORBIDDEN)`` for one it does not allow."""
    if asked is not None:
        _need_allowed(asked, project.compute_allowed, project, "compute")
        return asked
    return project.compute_default or next(iter(project.compute_allowed), ComputePolicy.GUARANTEE)


def settled_request(request: GpuRequest, project: Project) -> GpuRequest:
    """The request of new work with the mode that it insists on filled in (empty: the GPU decides).

    Raises ``GpupoolError(FORBIDDEN)`` for a mode that the project does not allow.
    """
    for mode in implied_modes(request):
        _need_allowed(mode, project.sharing_allowed, project, "sharing")
    if request.sharing is Sharing.MIG:
        return replace(request, models=tuple(_with_mig(m) for m in request.models) or ("mig",))
    if request.sharing is not None or request.whole or request.count == 0:
        return request
    default = _slice_default(project)
    return request if default is None else replace(request, sharing=default)


def implied_modes(request: GpuRequest) -> tuple[Sharing, ...]:
    """The modes that a request is sure to need, whatever GPU it gets."""
    if request.count == 0:
        return ()
    if request.sharing is not None:
        return (request.sharing,)
    if not request.whole:
        return ()
    instances = [speaks_of_mig(model) for model in request.models]
    found = [Sharing.MIG] if any(instances) else []
    return tuple(found if found and all(instances) else [*found, Sharing.WHOLE])


def slice_mode(asked: str, policy: str, offered: Sequence[str]) -> str | None:
    """The mode that a part of a GPU gets on it; None: this GPU is not for it.

    ``policy`` is the GPU's (or its node's) and may be empty, ``offered`` what the node can do, its default first; empty
    when it does not say. An empty mode is whatever the node does by itself.
    """
    wanted = asked or policy
    if policy and policy != wanted:
        return None
    if wanted == Sharing.WHOLE or (wanted and offered and wanted not in offered):
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
                f"The project's default for {what} is {default}, which it does not allow.",
                f"Allowed: {', '.join(allowed)}. Set both at once.",
            )
    if project.sharing_default in {Sharing.WHOLE, Sharing.MIG}:
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST,
            f"The default mode is for parts of GPUs; {project.sharing_default} is not for those.",
            "Give share, mps or advisory; allow only whole to forbid parts of GPUs.",
        )


def _slice_default(project: Project) -> Sharing | None:
    """The mode that a project gives parts of GPUs by itself; raises FORBIDDEN where it allows none."""
    if project.sharing_default is not None:
        return project.sharing_default
    if not project.sharing_allowed:
        return None
    usable = [mode for mode in project.sharing_allowed if mode not in {Sharing.WHOLE, Sharing.MIG}]
    if not usable:
        raise GpupoolError(
            ErrorCode.FORBIDDEN,
            f"The project {project.name} does not allow parts of GPUs.",
            f"Ask for whole ones (-g 1); allowed: {', '.join(project.sharing_allowed)}.",
        )
    return usable[0]


def _with_mig(model: str) -> str:
    return model if speaks_of_mig(model) else f"{model} mig"


def _need_allowed(value: str, allowed: Sequence[str], project: Project, what: str) -> None:
    if allowed and value not in allowed:
        raise GpupoolError(
            ErrorCode.FORBIDDEN,
            f"The project {project.name} does not allow {what} {value}.",
            f"Allowed: {', '.join(allowed)}.",
        )


_COMPUTE = {
    ComputePolicy.GUARANTEE: "its share of compute time when others want the GPU, all of it when nobody does",
    ComputePolicy.CAP: "never more than its share of compute time",
    ComputePolicy.NONE: "compute time is not divided: the hardware shares it",
}
_MPS_COMPUTE = {
    ComputePolicy.GUARANTEE: "as much compute as is free: MPS caps, it does not reserve",
    ComputePolicy.CAP: "at most its share of the GPU's processors at a time",
    ComputePolicy.NONE: "compute is not divided",
}


def guarantee(mode: str, compute: ComputePolicy) -> str:
    """What a mode guarantees, in a sentence; for a mode that is not known, that nothing is."""
    if mode == Sharing.WHOLE:
        return "Nobody else of the pool is on these GPUs."
    if mode == Sharing.MIG:
        return "Memory and compute of the MIG instance are its own, by hardware."
    if mode == Sharing.SHARE:
        return f"The share library holds its memory to its part; {_COMPUTE[compute]}."
    if mode == Sharing.MPS:
        return f"MPS holds its memory to its part; {_MPS_COMPUTE[compute]}; a fault of a neighbour can end it."
    if mode == Sharing.ADVISORY:
        return "Its part is told to the program and kept free for it; nothing enforces it."
    return "The shares on a GPU never add up to more than one; the node decides how they are kept apart."
