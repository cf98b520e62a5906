"""Efficiency of workloads: their requests compared with the stored samples."""

from __future__ import annotations

from collections.abc import Sequence

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.people.access import Actor
from gpupool.domain.work.efficiency import Efficiency, GrantedGpus, MeasuredUse, efficiency_of
from gpupool.domain.work.workload import Workload
from gpupool.services.telemetry.service import TelemetryService
from gpupool.services.workloads.service import WorkloadService

MAX_COMPARED = 20  # workloads of a report


async def efficiency(workloads: WorkloadService, telemetry: TelemetryService, workload: Workload) -> Efficiency:
    """Compare the request of a workload with the use of all its replicas and attempts."""
    measured = (await telemetry.total_of([workload.id])).get(workload.id, MeasuredUse())
    return efficiency_of(measured, await _granted(workloads, workload), workload.limits)


async def _granted(workloads: WorkloadService, workload: Workload) -> GrantedGpus:
    leases = await workloads.leases_of(workload)
    shares = leases[-1].shares if leases else ()
    if not shares:
        return GrantedGpus()
    return GrantedGpus(len(shares), shares[0].memory_mib, shares[0].permille)


async def compare(
    workloads: WorkloadService, telemetry: TelemetryService, actor: Actor, ids: Sequence[str]
) -> list[tuple[Workload, Efficiency]]:
    """Return the workloads among the first ``MAX_COMPARED`` ids for which a smaller request would do."""
    found = []
    for each in ids[:MAX_COMPARED]:
        try:
            workload = await workloads.get(actor, WorkloadId(each))
        except GpupoolError:
            continue  # its history is deleted
        compared = await efficiency(workloads, telemetry, workload)
        if compared.suggestions:
            found.append((workload, compared))
    return found
