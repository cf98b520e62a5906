"""From a replica that holds a lease to the program its node has to run."""

from __future__ import annotations

from gpupool.domain.supervision import ProcessSpec
from gpupool.domain.workload import Lease, Replica, Workload
from gpupool.services.nodebook import NodeBook
from gpupool.specs.request import program_for


class ProcessSpecs:
    """Builds what a node is told; ``as_user`` is true when the pool runs jobs as their owners (a system pool)."""

    def __init__(self, nodes: NodeBook, *, as_user: bool) -> None:
        self._nodes = nodes
        self._as_user = as_user

    def build(self, workload: Workload, replica: Replica, lease: Lease | None) -> ProcessSpec:
        """The process of the replica's present attempt; an EXEC's lease is that of the workload it runs on."""
        argv, env = program_for(workload, replica.index)
        limits = workload.limits
        return ProcessSpec(
            key=replica.key,
            epoch=replica.lease or 0,
            argv=argv,
            env=env | _course(replica),
            cwd=workload.program.cwd,
            stdio=workload.program.stdio,
            rows=workload.program.rows,
            columns=workload.program.columns,
            client_bound=workload.program.client_bound,
            uid=workload.uid if self._as_user else None,
            umask=workload.program.umask,
            grace_s=limits.grace_s,
            notice_signal=limits.notice_signal,
            max_time_s=limits.max_time_s,
            cpus=limits.cpus,
            memory_mib=limits.memory_mib,
            log_limit_mib=limits.log_limit_mib,
            gpus=lease.shares if lease is not None else (),
            emulated=self._nodes.emulated(replica.node),
            lease=lease.epoch if lease is not None else 0,
            compute=lease.compute if lease is not None else workload.compute,
            sharing=lease.sharing if lease is not None else "",
        )


def _course(replica: Replica) -> dict[str, str]:
    """What a program may want to know of its attempts before this one."""
    env = {"GPUPOOL_ATTEMPT": str(replica.attempt), "GPUPOOL_INTERRUPTIONS": str(replica.interruptions)}
    return env | ({"GPUPOOL_RESUME": "1"} if replica.attempt > 1 else {})
