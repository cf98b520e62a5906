"""Telemetry service: pull samples from the nodes, answer queries, write rollups to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import NodeState
from gpupool.domain.nodes.telemetry import GpuSample, NodeSample, ReplicaSample, Rollups, RollupStep, Series
from gpupool.domain.work.efficiency import MeasuredUse
from gpupool.services.ports.adapters import Ports
from gpupool.services.state.mirror import Mirror
from gpupool.services.state.node_registry import NodeRegistry
from gpupool.services.telemetry import series
from gpupool.services.telemetry.intake import Intake
from gpupool.services.telemetry.rings import KEPT_S
from gpupool.services.telemetry.tallies import all_of

EVERY_S = 1.0
SILENT_S = 10.0  # an older sample of a node is not current
PULL_WAIT_S = 20.0
BEHIND_S = 3.0
FORGET_EVERY_S = 3600.0
FORGET_AT_ONCE = 5000  # rows in one transaction
KEPT_UNWRITTEN = 10  # minutes that could not be written and are tried again
KEEP_S = {RollupStep.MINUTE: series.MINUTES_KEPT_S, RollupStep.HOUR: 730 * 86400.0}

log = structlog.get_logger("gpupool.telemetry")


class TelemetryService:
    """Current samples and past series. It checks no permissions; callers do."""

    def __init__(self, ports: Ports, nodes: NodeRegistry, mirror: Mirror) -> None:
        self._ports = ports
        self._nodes = nodes
        self._intake = Intake(mirror)
        self._pulling: dict[str, asyncio.Task[None]] = {}
        self._written_in = 0  # start of the minute in which rows were written last
        self._begun = asyncio.Event()  # set once it is known which samples the store's rows include

    # -- now ---------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time of the clock that this service uses, in seconds since the epoch."""
        return self._ports.clock.now()

    def latest(self) -> Mapping[str, NodeSample]:
        """Return the newest sample of each node that has sent one in the last ten seconds."""
        return self._intake.latest(self._ports.clock.monotonic() - SILENT_S)

    def latest_gpu(self, uuid: str) -> GpuSample | None:
        """Return the newest sample of a GPU; None without one in the last ten seconds."""
        return self._intake.latest_gpu(uuid, self._ports.clock.monotonic() - SILENT_S)

    def latest_replica(self, key: str) -> ReplicaSample | None:
        """Return the newest sample of an attempt, by attempt key; None without one in the last ten seconds.

        For a workload of kind lease it is the sum over the programs that run on the lease.
        """
        return self._intake.latest_replica(key, self._ports.clock.monotonic() - SILENT_S)

    # -- the past ----------------------------------------------------------------------------------------------------

    async def gpu_series(self, uuid: str, since: float, until: float, step: RollupStep | None = None) -> Series:
        """Return the series of a GPU between two times.

        Columns: ``utilisation_percent``, ``memory_used_mib``, ``power_w``, ``temperature_c`` (in rollups the maximum),
        ``sm_clock_mhz``. Without a ``step`` it is the finest that reaches back far enough and gives at most 1,500
        points: samples for the last ten minutes, minutes for up to 25 hours, else hours or multiples of them.
        """
        source = series.source_for(since, until, self._ports.clock.now(), step)
        if source.rows is None:
            return series.of_samples(series.GPU_COLUMNS, *self._intake.gpu_samples(uuid, since, until))
        rows = await self._ports.store.use_rows.of_gpu(uuid, source.rows, since, until)
        fresh = [row for row in self.unwritten().gpus if row.gpu_uuid == uuid and since <= row.at < until]
        return series.of_gpu([*rows, *fresh], source.step_s)

    async def replica_series(
        self, workload: WorkloadId, index: int, since: float, until: float, step: RollupStep | None = None
    ) -> Series:
        """Return the series of a replica over all its attempts; ``step`` as in ``gpu_series``.

        Columns: ``gpu_percent`` and ``cpu_percent`` (100 is one GPU or core all the time), ``gpu_memory_mib``,
        ``memory_mib`` (in rollups the maximum), ``read_bytes_per_s``, ``written_bytes_per_s``.
        """
        source = series.source_for(since, until, self._ports.clock.now(), step)
        if source.rows is None:
            return series.of_samples(
                series.REPLICA_COLUMNS, *self._intake.replica_samples(workload, index, since, until)
            )
        rows = await self._ports.store.use_rows.of_replica(workload, index, source.rows, since, until)
        fresh = [r for r in self.unwritten().replicas if (r.workload, r.index) == (workload, index)]
        return series.of_replica([*rows, *(row for row in fresh if since <= row.at < until)], source.step_s)

    async def total_of(self, workloads: Sequence[WorkloadId]) -> dict[WorkloadId, MeasuredUse]:
        """Return the measured use of each workload: all replicas and attempts, also the last minutes."""
        found = dict(await self._ports.store.use_rows.total_of(workloads))
        for row in self.unwritten().replicas:
            if row.workload in workloads:
                use = MeasuredUse(
                    row.samples, row.busy_s, row.idle_s, row.cpu_s, row.gpu_memory_max_mib, row.memory_max_mib
                )
                found[row.workload] = found.get(row.workload, MeasuredUse()).plus(use)
        return found

    async def node_series(self, node: str, since: float, until: float, step: RollupStep | None = None) -> Series:
        """Return the series of a node: ``cpu_percent`` (100 is one core) and ``memory_used_mib``.

        ``step`` as in ``gpu_series``.
        """
        source = series.source_for(since, until, self._ports.clock.now(), step)
        if source.rows is None:
            return series.of_samples(series.NODE_COLUMNS, *self._intake.node_samples(node, since, until))
        rows = await self._ports.store.use_rows.of_node(node, source.rows, since, until)
        fresh = [row for row in self.unwritten().nodes if row.node == node and since <= row.at < until]
        return series.of_node([*rows, *fresh], source.step_s)

    def unwritten(self) -> Rollups:
        """Return the rows of minutes that are not in the store yet, to be added to those in the store."""
        return all_of(self._intake.unwritten())

    # -- work --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Pull each node once a second and write once a minute, until cancelled."""
        try:
            await self._begin()
            while True:
                self.pull_all()
                await self.write_if_due()
                await asyncio.sleep(EVERY_S)
        finally:
            for task in self._pulling.values():
                task.cancel()
            await asyncio.gather(*self._pulling.values(), return_exceptions=True)

    async def _begin(self) -> None:
        """Read which samples an earlier control plane has written; until then nothing is counted."""
        while True:
            try:
                self._intake.written_before(await self._ports.store.use_rows.written())
                break
            except GpupoolError as error:
                log.warning("could not read which samples are stored; trying again", code=error.code)
            await asyncio.sleep(EVERY_S)
        self._written_in = self._minute()
        self._begun.set()

    def _minute(self) -> int:
        return int(self._ports.clock.now()) // RollupStep.MINUTE * RollupStep.MINUTE

    def pull_all(self) -> None:
        """Start a pull from each node that is not down and has no running pull."""
        for node in self._nodes.all():
            task = self._pulling.get(node.name)
            if node.state is not NodeState.DOWN and (task is None or task.done()):
                self._pulling[node.name] = asyncio.create_task(self.pull(node.name))

    async def pull(self, name: str) -> None:
        """Pull samples from one node until it has no more; after an error, the next second tries again."""
        try:
            async with asyncio.timeout(PULL_WAIT_S):
                await self._begun.wait()
                while await self._pull_once(name):
                    pass
        except (GpupoolError, TimeoutError):
            pass
        except (TypeError, ValueError, LookupError) as error:  # the node's answer is malformed
            log.warning("invalid samples from a node", node=name, error=repr(error)[:200])

    async def _pull_once(self, name: str) -> bool:
        """Pull once; return True if the last sample is old enough that the node has more."""
        after = self._intake.after(name, kept=int(KEPT_S))
        samples = await self._ports.fabric.link(name).samples(after)
        self._intake.take(name, samples, after, self._ports.clock.monotonic())
        return bool(samples) and samples[-1].at < self._ports.clock.now() - BEHIND_S

    # -- writing -----------------------------------------------------------------------------------------------------

    async def write_if_due(self) -> None:
        """Write the minutes that are over, once in each minute; a failed write is tried again a minute later."""
        now = self._minute()
        if now == self._written_in:
            return
        self._written_in = now
        self._intake.prune(self._ports.clock.now())
        await self.write(keep=now)

    async def write(self, keep: int | None = None) -> None:
        """Write all minutes except ``keep``; after a failed write, keep the newest ten minutes to try again."""
        due = self._intake.due(keep)
        if not due:
            return
        numbers = {name: number for minute in due for name, number in minute.numbers.items()}
        try:
            await self._ports.store.use_rows.save(all_of(due), numbers)
        except GpupoolError as error:
            lost = self._intake.put_back(due, KEPT_UNWRITTEN)
            log.warning("samples not written", code=error.code, minutes=len(due), lost=lost)

    async def forget(self) -> None:
        """Delete old rows once an hour, until cancelled: minutes after two weeks, hours after two years."""
        while True:
            try:
                for step, keep_s in KEEP_S.items():
                    while await self._ports.store.use_rows.forget(
                        step, self._ports.clock.now() - keep_s, FORGET_AT_ONCE
                    ):
                        await self._ports.sleep(0.1)
            except GpupoolError as error:
                log.warning("could not delete old samples", code=error.code)
            await self._ports.sleep(FORGET_EVERY_S)

    async def close(self) -> None:
        """Write all minutes that are left; to be called after background work has ended."""
        await self.write()
