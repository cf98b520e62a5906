"""How much of what is free is of no use: the fragmentation of the FGD paper (USENIX ATC 2023), for usual work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpupool.domain.gpu import GpuRequest
from gpupool.scheduling.cluster import MILLI, ClusterState
from gpupool.simulate.load import permille_of
from gpupool.simulate.values import Job

COVER = 0.95  # of the jobs are of a usual kind
MOST_KINDS = 64

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of work and its part of all jobs."""

    request: GpuRequest
    cpu_milli: int
    part: float


def usual_kinds(jobs: Iterable[Job]) -> tuple[Kind, ...]:
    """The most frequent kinds of work, until they cover 95 % of the jobs."""
    counts = Counter((job.request, round(job.cpus * MILLI)) for job in jobs)
    chosen: list[tuple[GpuRequest, int, int]] = []
    covered = 0
    for (request, cpu_milli), count in counts.most_common(MOST_KINDS):
        if covered >= COVER * counts.total():
            break
        chosen.append((request, cpu_milli, count))
        covered += count
    return tuple(Kind(request, cpu_milli, count / covered) for request, cpu_milli, count in chosen)


def stranded_permille(cluster: ClusterState, kinds: Sequence[Kind]) -> float:
    """Free GPU thousandths that a job cannot use, on average over the usual kinds of work.

    All that is free on a node counts where the job does not fit at all, else what is free of GPUs too full for it.
    """
    free = np.where(cluster.available & cluster.up[:, None], np.maximum(cluster.gpu_free, 0), 0)
    return sum(kind.part * _stranded_for(cluster, free, kind) for kind in kinds)


def _stranded_for(cluster: ClusterState, free: Ints, kind: Kind) -> float:
    request = kind.request
    accepted = np.array([bool(model) and request.accepts_model(model) for model in cluster.models])
    need = permille_of(request) // max(1, request.count)
    usable = accepted[cluster.model] & (free >= need)
    fits = (usable.sum(axis=1) >= request.count) & (cluster.cpu_free >= kind.cpu_milli)
    return float(free.sum() - (free * usable)[fits].sum())
