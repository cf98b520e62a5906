"""Short descriptions of workloads, the same on every page."""

from __future__ import annotations

import shlex

from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.nodes.sharing import ComputePolicy
from gpupool.domain.units import WHOLE_GPU, format_duration, format_mib, format_permille
from gpupool.domain.work.workload import Limits, OnPreempt, Workload


def gpus_text(gpus: GpuRequest) -> str:
    """Return the GPU request of a replica: ``0.5``, ``2``, ``2 x 0.5``, ``4 GiB``, with the accepted models."""
    if gpus.memory_mib is not None:
        part = format_mib(gpus.memory_mib)
    else:
        part = "" if gpus.permille == WHOLE_GPU else format_permille(gpus.permille)
    amount = (f"{gpus.count} x {part}" if gpus.count > 1 else part) if part else str(gpus.count)
    return " ".join(word for word in (amount, " or ".join(gpus.models)) if word)


def command_text(workload: Workload) -> str:
    """Return the command quoted for a shell."""
    return shlex.join(workload.program.argv)


def sharing_text(workload: Workload) -> str:
    """Return the requested sharing mode and compute policy; empty without a request."""
    words = [workload.gpus.sharing.value if workload.gpus.sharing else ""]
    words.append("" if workload.compute is ComputePolicy.GUARANTEE else f"compute {workload.compute.value}")
    return ", ".join(word for word in words if word)


ON_PREEMPT = {OnPreempt.KILL: "killed on preemption", OnPreempt.SUSPEND: "suspended on preemption"}


def limits_text(limits: Limits) -> str:
    """Return ``time 4h00m, idle 30m00s, 8 cpus, memory 32 GiB``; empty without limits."""
    times = (("wait", limits.wait_s), ("time", limits.max_time_s), ("idle", limits.idle_timeout_s))
    parts = [f"{name} {format_duration(seconds)}" for name, seconds in times if seconds is not None]
    if limits.cpus is not None:
        parts.append(f"{limits.cpus:g} cpus")
    if limits.memory_mib is not None:
        parts.append(f"memory {format_mib(limits.memory_mib)}")
    parts += [ON_PREEMPT[limits.on_preempt]] if limits.on_preempt in ON_PREEMPT else []
    if limits.return_after_s is not None:
        parts.append(f"returns unused GPUs after {format_duration(limits.return_after_s)}")
    return ", ".join(parts)


def gang_text(workload: Workload) -> str:
    """Return ``4 workers that start together, preferably within one rack``; empty without a gang."""
    gang = workload.gang
    if gang is None:
        return ""
    size = f"{gang.most} workers" if gang.least == gang.most else f"{gang.least} to {gang.most} workers"
    within = f", {'only' if gang.strict else 'preferably'} within one {gang.within}" if gang.within else ""
    models = ", on GPUs of any model" if gang.mixed_models else ""
    return f"{size} that start together{within}{models}"
