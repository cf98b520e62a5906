"""The use of GPUs by a running program that gets and returns them while it runs, as lists and pages show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the command line loads this module at each start, and needs the texts only
    from gpupool.domain.work.workload import Replica, Workload

GpuUse = Literal["unused", "waiting", "held", "suspended"]

GPU_USE_TEXT: dict[str, str] = {
    "unused": "holds no GPU until it uses CUDA",
    "suspended": "suspended: holds no GPU until it uses CUDA again",
    "waiting": "waiting for a GPU",
}


def gpu_use(workload: Workload, replica: Replica) -> GpuUse | None:
    """Return the use; None if the program does not run, or holds its GPUs from its start to its end."""
    if not workload.limits.separate_gpus or replica.state.value != "running":
        return None
    if replica.waits_for_gpus:
        return "waiting"
    if replica.gpu_lease is not None:
        return "held"
    return "suspended" if replica.suspended_gpu else "unused"
