"""Who holds GPUs, since when, for how long they have lain idle, and until when."""

from __future__ import annotations

from dataclasses import dataclass

from gpupool.domain.access import Actor
from gpupool.domain.ids import WorkloadId
from gpupool.domain.workload import ReplicaState, Workload, WorkloadKind
from gpupool.services.holdings import Holding
from gpupool.services.loops import IDLE_WARNING_AT
from gpupool.services.pool import PoolServices

EXTENSIONS = (("30m", "30 minutes"), ("1h", "1 hour"), ("4h", "4 hours"), ("1d", "1 day"))


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease that is held. ``idle_s`` is what the idle limit ``idle_limit_s`` goes by; ``ends_at``: by its limits.

    ``gpus`` are (index, uuid, thousandths); ``warned``: the idle limit is near; ``manage``: may release or extend it.
    """

    epoch: int
    workload: WorkloadId
    name: str
    index: int
    completions: int
    kind: str
    state: str
    user: str
    project: str
    node: str
    gpus: tuple[tuple[int, str, int], ...]
    permille: int
    since: float
    held_s: float
    idle_s: float
    idle_limit_s: float | None
    warned: bool
    ends_at: float | None
    programs: int
    manage: bool
    extendable: bool

    @property
    def gpu_text(self) -> str:
        """``GPU 0``, ``GPUs 0, 1``."""
        numbers = ", ".join(str(index) for index, _, _ in self.gpus)
        return f"GPU{'s' if len(self.gpus) > 1 else ''} {numbers}"


async def lease_rows(services: PoolServices, actor: Actor, now: float) -> tuple[LeaseRow, ...]:
    """All that is held, the oldest first."""
    return tuple(_row(services, actor, holding, now) for holding in await services.workloads.holdings.held())


def _row(services: PoolServices, actor: Actor, holding: Holding, now: float) -> LeaseRow:
    lease, workload, replica = holding.lease, holding.workload, holding.replica
    limit = workload.limits.idle_timeout_s if workload is not None else None
    idle_s = max(0.0, now - holding.last_active_at)
    manage = workload is not None and services.workloads.can_manage(actor, workload)
    return LeaseRow(
        lease.epoch,
        lease.workload,
        workload.name if workload is not None else lease.workload,
        lease.index,
        workload.completions if workload is not None else 1,
        workload.kind.value if workload is not None else "",
        (replica.state if replica is not None else ReplicaState.STOPPING).value,
        lease.user,
        lease.project,
        lease.node,
        tuple((share.gpu_index, share.gpu_uuid, share.permille) for share in lease.shares),
        lease.permille,
        lease.granted_at,
        now - lease.granted_at,
        idle_s,
        limit,
        limit is not None and idle_s > limit * IDLE_WARNING_AT,
        _ends_at(workload, lease.granted_at),
        holding.programs,
        manage,
        manage and workload is not None and is_extendable(workload),
    )


def is_extendable(workload: Workload) -> bool:
    """Whether it is a lease with an expiry that can be moved."""
    return workload.kind is WorkloadKind.LEASE and workload.expires_at is not None and not workload.state.final


def _ends_at(workload: Workload | None, granted_at: float) -> float | None:
    if workload is None:
        return None
    if workload.kind is WorkloadKind.LEASE:
        return workload.expires_at
    return None if workload.limits.max_time_s is None else granted_at + workload.limits.max_time_s
