"""Change the load of a trace, the nodes or the projects, and split jobs to the size of nodes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest, Node
from gpupool.domain.people.access import Project
from gpupool.domain.units import WHOLE_GPU
from gpupool.simulate.clusters import USUAL_GPU_MIB
from gpupool.simulate.values import TraceJob

MAX_LOAD = 1000.0


def permille_of(request: GpuRequest) -> int:
    """Return the GPU thousandths of a request; memory counts on a GPU of usual size."""
    return request.count * min(WHOLE_GPU, request.permille_on(USUAL_GPU_MIB))


def offered_load(jobs: Sequence[TraceJob], capacity_permille: int) -> float:
    """Return the jobs' work over the cluster's capacity from the first submission to the last; 0: at one moment."""
    work = sum(permille_of(job.request) * job.duration_s for job in jobs)
    span = jobs[-1].submitted_s - jobs[0].submitted_s
    return work / (span * capacity_permille) if span else 0.0


def at_load(jobs: Sequence[TraceJob], capacity_permille: int, load: float) -> tuple[TraceJob, ...]:
    """Return the same jobs submitted faster or slower, so that they offer ``load``; raise ``GpupoolError``."""
    now = offered_load(jobs, capacity_permille)
    if not 0 < load <= MAX_LOAD or not now:
        what = "the trace has no time span to scale" if not now else f"{load:g} is not between 0 and {MAX_LOAD:g}"
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"The load cannot be set: {what}.", "Try --load 0.95.")
    first, stretch = jobs[0].submitted_s, now / load
    return tuple(replace(job, submitted_s=first + (job.submitted_s - first) * stretch) for job in jobs)


def capacity_of(nodes: Iterable[Node]) -> int:
    """Return the GPU thousandths of all nodes."""
    return sum(len(node.report.gpus) for node in nodes) * WHOLE_GPU


def inflated(jobs: Sequence[TraceJob], capacity_permille: int, load: float, seed: int) -> tuple[TraceJob, ...]:
    """Return the jobs in random order, then more drawn from them, until they request ``load`` times the cluster.

    The protocol of the FGD paper (USENIX ATC 2023): jobs arrive one after the other, and none ends.
    """
    rng = random.Random(seed)  # noqa: S311 - an order, no secret
    found = rng.sample(list(jobs), len(jobs))
    asked = sum(permille_of(job.request) for job in found)
    while asked < load * capacity_permille:
        found.append(rng.choice(jobs))
        asked += permille_of(found[-1].request)
    return tuple(replace(job, submitted_s=float(place)) for place, job in enumerate(found))


def split(request: GpuRequest, most: int) -> tuple[GpuRequest, ...]:
    """Split a request into one for each node that it needs when no node has more than ``most`` GPUs.

    Equal parts where possible; otherwise full ones and a rest.
    """
    if request.count <= most:
        return (request,)
    nodes = -(-request.count // most)
    if request.count % nodes == 0:
        return (replace(request, count=request.count // nodes),) * nodes
    full, rest = divmod(request.count, most)
    return (replace(request, count=most),) * full + (replace(request, count=rest),)


@dataclass(frozen=True, slots=True)
class Change:
    """Added nodes, names of removed ones, and new quotas (thousandths; None: no limit) and weights of projects."""

    added: tuple[Node, ...] = ()
    without: tuple[str, ...] = ()
    quotas: Mapping[str, int | None] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.without or self.quotas or self.weights)

    def nodes(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Return the nodes with the change; raise ``GpupoolError`` (UNKNOWN_NODE, INVALID_REQUEST)."""
        names = {node.name for node in nodes}
        if unknown := [name for name in self.without if name not in names]:
            known = ", ".join(sorted(names)[:5])
            raise GpupoolError(ErrorCode.UNKNOWN_NODE, f"There is no node {unknown[0]}.", f"There are: {known} ...")
        kept = tuple(node for node in nodes if node.name not in self.without)
        found = kept + tuple(_renamed(node, number) for number, node in enumerate(self.added, 1))
        if not found:
            raise GpupoolError(ErrorCode.INVALID_REQUEST, "No node would be left.", "Leave at least one.")
        return found

    def projects(self, projects: Sequence[Project]) -> tuple[Project, ...]:
        """Return the projects with the change; a new project has no other limits."""
        found = {project.name: project for project in projects}
        for name, quota in self.quotas.items():
            found[name] = replace(found.get(name, Project(name)), quota_permille=quota)
        for name, weight in self.weights.items():
            found[name] = replace(found.get(name, Project(name)), weight=weight)
        return tuple(found.values())


def _renamed(node: Node, number: int) -> Node:
    name = f"added{number:05}"
    gpus = tuple(replace(gpu, uuid=f"{name}/{gpu.index}") for gpu in node.report.gpus)
    return replace(node, report=replace(node.report, name=name, gpus=gpus))
