"""From a replica that holds a lease to the program its node has to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpupool.distributed.telling import told
from gpupool.domain.container import ContainerSpec, inner_environment
from gpupool.domain.supervision import ProcessSpec
from gpupool.domain.workload import EnvSource, Lease, Replica, Workload
from gpupool.services.files.bringing import files_of
from gpupool.services.nodebook import NodeBook
from gpupool.specs.request import program_for


class ProcessSpecs:
    """Builds what a node is told; ``as_user`` is true when the pool runs jobs as their owners (a system pool)."""

    def __init__(self, nodes: NodeBook, *, as_user: bool) -> None:
        self.nodes = nodes
        self.as_user = as_user
        self.volume_roots: Callable[[str], tuple[str, ...]] = lambda _project: ()

    def build(
        self, workload: Workload, replica: Replica, lease: Lease | None, host: Workload | None = None
    ) -> ProcessSpec:
        """The process of the replica's present attempt; an EXEC's lease is that of ``host``, which it runs on."""
        argv, env = program_for(workload, replica.index)
        env |= self._known_at_start(workload, replica)
        ports: tuple[int, ...] = ()
        if workload.wiring is not None and (seat := workload.wiring.seat_of(replica.index)) is not None:
            program = told(workload, workload.wiring, replica.index, argv, env)
            argv, env, ports = program.argv, program.env, seat.ports
        limits = workload.limits
        container = self._container(workload, replica, host)
        inside = container is not None and bool(container.inside)
        return ProcessSpec(
            key=replica.key,
            epoch=replica.lease or 0,
            argv=argv,
            env=(inner_environment(env) if inside else env) | _course(replica),
            cwd="" if inside else workload.program.cwd,
            stdio=workload.program.stdio,
            rows=workload.program.rows,
            columns=workload.program.columns,
            client_bound=workload.program.client_bound,
            uid=workload.uid if self.as_user else None,
            umask=workload.program.umask,
            grace_s=limits.grace_s,
            notice_signal=limits.notice_signal,
            max_time_s=limits.max_time_s,
            cpus=workload.cpus_of(replica.index),
            memory_mib=workload.memory_of(replica.index),
            log_limit_mib=limits.log_limit_mib,
            gpus=lease.shares if lease is not None else (),
            emulated=self.nodes.emulated(replica.node),
            lease=lease.epoch if lease is not None else 0,
            compute=lease.compute if lease is not None else workload.compute,
            sharing=lease.sharing if lease is not None else "",
            fence_after_s=lease.fence_after_s if lease is not None else None,
            ports=ports,
            container=container,
            files=files_of(workload) or (files_of(host) if host is not None and not workload.program.cwd else None),
        )

    def _container(self, workload: Workload, replica: Replica, host: Workload | None) -> ContainerSpec | None:
        """Its own, within the project's rules; or that of the program on whose GPUs an EXEC runs."""
        own = workload.container_of(replica.index)
        if own is not None:
            return replace(own, roots=self.volume_roots(workload.project))
        if host is None or (theirs := host.container_of(workload.on_index)) is None:
            return None
        return ContainerSpec(theirs.image, inside=f"{host.id}.{workload.on_index}")

    def _known_at_start(self, workload: Workload, replica: Replica) -> dict[str, str]:
        """The variables of ``Program.env_from``."""
        node = self.nodes.find(replica.node or "")
        values = {
            EnvSource.MEMBER: workload.member_name(replica.index),
            EnvSource.INDEX: str(replica.index),
            EnvSource.ID: workload.id,
            EnvSource.PROJECT: workload.project,
            EnvSource.USER: workload.user,
            EnvSource.NODE: replica.node or "",
            EnvSource.ADDRESS: node.report.address if node is not None else "",
        }
        return {name: values[EnvSource(source)] for name, source in workload.program.env_from.items()}


def _course(replica: Replica) -> dict[str, str]:
    """What a program may want to know of its attempts before this one."""
    env = {"GPUPOOL_ATTEMPT": str(replica.attempt), "GPUPOOL_INTERRUPTIONS": str(replica.interruptions)}
    return env | ({"GPUPOOL_RESUME": "1"} if replica.attempt > 1 else {})
