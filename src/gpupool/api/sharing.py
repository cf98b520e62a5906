"""Which sharing mode a workload got, and what that guarantees, in words."""

from __future__ import annotations

from collections.abc import Sequence

from gpupool.domain.gpu import Sharing
from gpupool.domain.sharing import guarantee
from gpupool.domain.workload import Lease, Replica, Workload, WorkloadKind

NONE = "none"  # no GPU is held
HELD = "held"  # the GPUs are another workload's
SLICE = "slice"  # a part of a GPU; the mode is decided with the place


def sharing_of(workload: Workload, replicas: Sequence[Replica], leases: Sequence[Lease]) -> tuple[str, str]:
    """The mode (several joined by commas) and what it guarantees.

    What its node says of the program counts most, then what was granted, then what is asked for.
    """
    seen = dict.fromkeys((r.sharing, r.guarantee or guarantee(r.sharing, workload.compute)) for r in replicas)
    found = [pair for pair in seen if pair[0]] or [_expected(workload, leases)]
    return ", ".join(dict.fromkeys(mode for mode, _ in found)), " ".join(dict.fromkeys(said for _, said in found))


def _expected(workload: Workload, leases: Sequence[Lease]) -> tuple[str, str]:
    if workload.kind is WorkloadKind.EXEC:
        return HELD, "It uses the GPUs of another workload, as that one does."
    if workload.gpus.count == 0:
        return NONE, "No GPU is held."
    granted = next((lease.sharing for lease in reversed(leases) if lease.sharing), "")
    mode = granted or workload.gpus.sharing or (Sharing.WHOLE if workload.gpus.whole else "")
    return str(mode) or SLICE, guarantee(mode, workload.compute)
