"""How far from their fair shares projects are, over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpupool.domain.access import Project
from gpupool.scheduling.division import fill
from gpupool.simulate.values import Record


def fair_levels(capacity: float, asked: Mapping[str, int], projects: Sequence[Project]) -> dict[str, float]:
    """What each project would hold, in thousandths, if GPUs could be divided at will: quotas first, then by weight.

    A project without a quota has none to count on where others have one. Departments and use lately are left out.
    """
    names = [project.name for project in projects]
    want = np.array([float(asked.get(name, 0)) for name in names])
    quota = np.array([float(project.quota_permille or 0) for project in projects])
    weight = np.array([project.weight for project in projects])
    owed = np.minimum(quota, want)
    pot, room = np.zeros(len(names), np.int64), np.array([capacity])
    given = fill(room, pot, owed, quota) if owed.sum() > capacity else owed
    given = given + fill(np.maximum(room - given.sum(), 0.0), pot, want - given, weight)
    return dict(zip(names, given.tolist(), strict=True))


def share_errors(record: Record) -> list[float]:
    """For each sample the part of the capacity that is held by others than those to whom it is due, from 0 to 1."""
    return [_error(record, sample.held, sample.asked) for sample in record.samples]


def _error(record: Record, held: Mapping[str, int], asked: Mapping[str, int]) -> float:
    capacity = float(record.capacity_permille)
    levels = fair_levels(capacity, asked, record.projects)
    missing = sum(max(0.0, level - held.get(name, 0)) for name, level in levels.items())
    free = max(0.0, capacity - sum(held.values()))
    return max(0.0, missing - free) / capacity if capacity else 0.0
