"""The latest result of the active checks of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuCheck:
    """The latest result of ``gpupool verify`` for one GPU.

    ``outcome`` is ``ok``, ``suspect`` or ``fail``, ``note`` what was found, ``workload`` the id of the workload that
    ran the checks. ``rates`` has the measured rates that are compared with other GPUs of the same model.
    """

    at: float
    outcome: str
    level: int
    model: str
    note: str
    workload: str
    rates: Mapping[str, float] = field(default_factory=dict)
