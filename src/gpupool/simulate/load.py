"""Making a trace heavier or lighter, and cutting jobs to the size of nodes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.gpu import GpuRequest, Node
from gpupool.domain.units import WHOLE_GPU
from gpupool.simulate.clusters import USUAL_GPU_MIB
from gpupool.simulate.values import Job

MOST_LOAD = 1000.0


def permille_of(request: GpuRequest) -> int:
    """GPU thousandths of a request; memory is counted on a GPU of usual size."""
    return request.count * min(WHOLE_GPU, request.permille_on(USUAL_GPU_MIB))


def offered_load(jobs: Sequence[Job], capacity_permille: int) -> float:
    """The work of the jobs over what the cluster could do from the first submission to the last; 0: at one moment."""
    work = sum(permille_of(job.request) * job.duration_s for job in jobs)
    span = jobs[-1].submitted_s - jobs[0].submitted_s
    return work / (span * capacity_permille) if span else 0.0


def at_load(jobs: Sequence[Job], capacity_permille: int, load: float) -> tuple[Job, ...]:
    """The same jobs submitted so much faster or slower that they offer ``load``; raises ``GpupoolError``."""
    now = offered_load(jobs, capacity_permille)
    if not 0 < load <= MOST_LOAD or not now:
        what = "the trace has no span of time to stretch" if not now else f"{load:g} is not between 0 and {MOST_LOAD:g}"
        raise GpupoolError(ErrorCode.INVALID_REQUEST, f"The load cannot be set: {what}.", "Try --load 0.95.")
    first, stretch = jobs[0].submitted_s, now / load
    return tuple(replace(job, submitted_s=first + (job.submitted_s - first) * stretch) for job in jobs)


def capacity_of(nodes: Iterable[Node]) -> int:
    """GPU thousandths of all nodes."""
    return sum(len(node.report.gpus) for node in nodes) * WHOLE_GPU


def inflated(jobs: Sequence[Job], capacity_permille: int, load: float, seed: int) -> tuple[Job, ...]:
    """The jobs in random order, then more drawn from them, until together they ask for ``load`` times the cluster.

    The protocol of the FGD paper (USENIX ATC 2023): one job after the other, nobody leaves.
    """
    rng = random.Random(seed)  # noqa: S311 - an order, no secret
    found = rng.sample(list(jobs), len(jobs))
    asked = sum(permille_of(job.request) for job in found)
    while asked < load * capacity_permille:
        found.append(rng.choice(jobs))
        asked += permille_of(found[-1].request)
    return tuple(replace(job, submitted_s=float(place)) for place, job in enumerate(found))


def split(request: GpuRequest, most: int) -> tuple[GpuRequest, ...]:
    """A request as one for each node that it needs when no node has more than ``most`` GPUs.

    Equal ones where that divides it; else full ones and a rest.
    """
    if request.count <= most:
        return (request,)
    nodes = -(-request.count // most)
    if request.count % nodes == 0:
        return (replace(request, count=request.count // nodes),) * nodes
    full, rest = divmod(request.count, most)
    return (replace(request, count=most),) * full + (replace(request, count=rest),)
