"""Conversion of a replica with a lease to the process that its node starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

from gpupool.distributed.environment import member_program
from gpupool.domain.work.program.container import ContainerSpec, container_environment
from gpupool.domain.work.program.git_source import parse_git_source
from gpupool.domain.work.program.supervision import NODE_PROGRAM, ProcessSpec
from gpupool.domain.work.workload import EnvSource, GpuLease, Limits, Replica, Workload
from gpupool.services.lifecycle.adoption_records import write_record
from gpupool.services.lifecycle.stage_in import files_of
from gpupool.services.ports.store import WorkloadRecords
from gpupool.services.state.node_registry import NodeRegistry
from gpupool.specs.request import program_for

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
CLONE_PROGRAM = "node/files/git_clone.py"
# The limits that the node enforces: those that ``ProcessSpec`` has under the same name.
_NODE_LIMITS = tuple(field.name for field in fields(Limits) if field.name in ProcessSpec.__dataclass_fields__)


class ProcessSpecs:
    """Builds process specs.

    ``volume_roots`` returns the folders that containers of a project may mount, ``workspace_image`` the image of a
    workspace. ``as_user`` is true if the pool runs jobs as their owners (a system pool).
    """

    def __init__(
        self,
        nodes: NodeRegistry,
        records: WorkloadRecords,
        pool_id: str,
        volume_roots: Callable[[str], tuple[str, ...]],
        workspace_image: Callable[[str], str],
        *,
        as_user: bool,
    ) -> None:
        self.nodes = nodes
        self.as_user = as_user
        self._records = records
        self._pool_id = pool_id
        self._volume_roots = volume_roots
        self._workspace_image = workspace_image

    def build(
        self, workload: Workload, replica: Replica, lease: GpuLease | None, host: Workload | None = None
    ) -> ProcessSpec:
        """Return the process of the replica's current attempt; an EXEC uses the lease of ``host``."""
        argv, env = program_for(workload, replica.index)
        env |= self._known_at_start(workload, replica)
        ports: tuple[int, ...] = ()
        if workload.wiring is not None and (seat := workload.wiring.seat_of(replica.index)) is not None:
            program = member_program(workload, workload.wiring, replica.index, argv, env)
            argv, env, ports = program.argv, program.env, seat.ports
        limits = {name: getattr(workload.limits, name) for name in _NODE_LIMITS}
        limits |= {"cpus": workload.cpus_of(replica.index), "memory_mib": workload.memory_of(replica.index)}
        limits["suspendable"] = (host or workload).limits.suspendable
        limits["lazy"] = (host or workload).limits.lazy
        if (host or workload).limits.separate_gpus:
            env.pop(VISIBLE_DEVICES, None)  # the share library sets it
        container = self._container(workload, replica, host)
        inside = container is not None and bool(container.inside)
        if container is None:
            argv = _after_clone(workload.program.git, argv)
        return ProcessSpec(
            key=replica.key,
            epoch=replica.lease or 0,
            argv=argv,
            env=(container_environment(env) if inside else env) | _attempt_env(replica),
            cwd="" if inside else workload.program.cwd,
            stdio=workload.program.stdio,
            rows=workload.program.rows,
            columns=workload.program.columns,
            client_bound=workload.program.client_bound,
            linger_s=workload.program.linger_s,
            uid=workload.uid if self.as_user else None,
            umask=workload.program.umask,
            **limits,
            gpus=lease.shares if lease is not None else (),
            emulated=self.nodes.emulated(replica.node),
            lease=lease.epoch if lease is not None else 0,
            gpu_epoch=replica.gpu_lease or 0,
            compute=lease.compute if lease is not None else workload.compute,
            sharing=lease.sharing if lease is not None else "",
            fence_after_s=lease.fence_after_s if lease is not None else None,
            ports=ports,
            container=container,
            files=files_of(workload) or (files_of(host) if host is not None and not workload.program.cwd else None),
            workspace=workload.program.workspace or (host.program.workspace if host is not None else ""),
            record=write_record(self._records, self._pool_id, workload, replica, lease, host),
        )

    def _container(self, workload: Workload, replica: Replica, host: Workload | None) -> ContainerSpec | None:
        """Return the replica's own container, or, for an EXEC, the container of its host."""
        own = workload.container_of(replica.index)
        if own is not None:
            home = workload.program.workspace
            kept = home if home and self._workspace_image(home) == own.image else ""
            return replace(own, roots=self._volume_roots(workload.project), layers=kept, git=workload.program.git)
        if host is None or (theirs := host.container_of(workload.on_index)) is None:
            return None
        return ContainerSpec(theirs.image, inside=f"{host.id}.{workload.on_index}")

    def _known_at_start(self, workload: Workload, replica: Replica) -> dict[str, str]:
        """Return the variables of ``MemberProgram.env_from``."""
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


def _after_clone(git: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the program that clones a repository and then becomes ``argv``; ``argv`` itself without one."""
    if not git:
        return argv
    source = parse_git_source(git)
    return (NODE_PROGRAM, CLONE_PROGRAM, source.url, source.revision, source.path, "--", *argv)


def _attempt_env(replica: Replica) -> dict[str, str]:
    """Return variables that tell a program about its earlier attempts."""
    env = {"GPUPOOL_ATTEMPT": str(replica.attempt), "GPUPOOL_INTERRUPTIONS": str(replica.interruptions)}
    return env | ({"GPUPOOL_RESUME": "1"} if replica.attempt > 1 else {})
