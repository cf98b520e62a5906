"""Pulling looks from the nodes, answering what was measured, writing what looks add up to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.gpu import NodeState
from gpupool.domain.ids import WorkloadId
from gpupool.domain.telemetry import GpuSample, NodeSample, ReplicaSample, Series, Step, Uses
from gpupool.services.mirror import Mirror
from gpupool.services.nodebook import NodeBook
from gpupool.services.ports import Ports
from gpupool.services.telemetry import series
from gpupool.services.telemetry.intake import Intake
from gpupool.services.telemetry.rings import KEPT_S
from gpupool.services.telemetry.tallies import all_of

EVERY_S = 1.0
SILENT_S = 10.0  # after which the latest look at a node is no longer now
PULL_WAIT_S = 20.0
BEHIND_S = 3.0
FORGET_EVERY_S = 3600.0
FORGET_AT_ONCE = 5000  # rows in one transaction
KEPT_UNWRITTEN = 10  # minutes that could not be written are tried again for as long
KEEP_S = {Step.MINUTE: series.MINUTES_KEPT_S, Step.HOUR: 730 * 86400.0}

log = structlog.get_logger("gpupool.telemetry")


class TelemetryService:
    """What was measured, of now and of the past. It does not ask who wants to know: callers check that."""

    def __init__(self, ports: Ports, book: NodeBook, mirror: Mirror) -> None:
        self._ports = ports
        self._book = book
        self._intake = Intake(mirror)
        self._pulling: dict[str, asyncio.Task[None]] = {}
        self._written_in = 0  # the minute in which rows were written last
        self._begun = asyncio.Event()  # once it is known which looks are in the store's rows

    # -- now ---------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """The time by the clock that everything here goes by, in seconds since the epoch."""
        return self._ports.clock.now()

    def latest(self) -> Mapping[str, NodeSample]:
        """The newest look at each node; nodes that have been silent for ten seconds are left out."""
        return self._intake.latest(self._ports.clock.monotonic() - SILENT_S)

    def latest_gpu(self, uuid: str) -> GpuSample | None:
        """The newest look at a GPU; None when there is none of the last ten seconds."""
        return self._intake.latest_gpu(uuid, self._ports.clock.monotonic() - SILENT_S)

    def latest_replica(self, key: str) -> ReplicaSample | None:
        """The newest look at a program that runs, by attempt key; None when there is none of the last ten seconds.

        Of a lease that programs run on: what these use together.
        """
        return self._intake.latest_replica(key, self._ports.clock.monotonic() - SILENT_S)

    # -- the past ----------------------------------------------------------------------------------------------------

    async def gpu_series(self, uuid: str, since: float, until: float, step: Step | None = None) -> Series:
        """``utilisation_percent``, ``memory_used_mib``, ``power_w``, ``temperature_c``, ``sm_clock_mhz`` of a GPU.

        Without a ``step`` it is the finest that reaches back so far and that gives at most 1,500 points: looks for the
        last ten minutes, minutes for a day, else hours or multiples of them. Rolled up, the temperature is the highest.
        """
        source = series.source_for(since, until, self._ports.clock.now(), step)
        if source.rows is None:
            return series.of_looks(series.GPU_COLUMNS, *self._intake.gpu_looks(uuid, since, until))
        rows = await self._ports.store.use_rows.of_gpu(uuid, source.rows, since, until)
        fresh = [row for row in self.unwritten().gpus if row.gpu_uuid == uuid and since <= row.at < until]
        return series.of_gpu([*rows, *fresh], source.step_s)

    async def replica_series(
        self, workload: WorkloadId, index: int, since: float, until: float, step: Step | None = None
    ) -> Series:
        """A replica over all its attempts; ``step`` as for ``gpu_series``.

        ``gpu_percent`` and ``cpu_percent`` (100: one GPU or core all the time), ``gpu_memory_mib``, ``memory_mib``
        (rolled up, the most), ``read_bytes_per_s``, ``written_bytes_per_s``.
        """
        source = series.source_for(since, until, self._ports.clock.now(), step)
        if source.rows is None:
            return series.of_looks(series.REPLICA_COLUMNS, *self._intake.replica_looks(workload, index, since, until))
        rows = await self._ports.store.use_rows.of_replica(workload, index, source.rows, since, until)
        fresh = [r for r in self.unwritten().replicas if (r.workload, r.index) == (workload, index)]
        return series.of_replica([*rows, *(row for row in fresh if since <= row.at < until)], source.step_s)

    async def node_series(self, node: str, since: float, until: float, step: Step | None = None) -> Series:
        """``cpu_percent`` (100 for one core) and ``memory_used_mib`` of a machine; ``step`` as for ``gpu_series``."""
        source = series.source_for(since, until, self._ports.clock.now(), step)
        if source.rows is None:
            return series.of_looks(series.NODE_COLUMNS, *self._intake.node_looks(node, since, until))
        rows = await self._ports.store.use_rows.of_node(node, source.rows, since, until)
        fresh = [row for row in self.unwritten().nodes if row.node == node and since <= row.at < until]
        return series.of_node([*rows, *fresh], source.step_s)

    def unwritten(self) -> Uses:
        """What was measured and is not in the store yet: rows of minutes, to be added to those that the store has."""
        return all_of(self._intake.unwritten())

    # -- work --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever: pull each node once a second, write once a minute."""
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
        """Go on where the control plane before this one has stopped. Until that is known nothing is counted."""
        while True:
            try:
                self._intake.written_before(await self._ports.store.use_rows.written())
                break
            except GpupoolError as error:
                log.warning("does not know which looks are written; asks again", code=error.code)
            await asyncio.sleep(EVERY_S)
        self._written_in = self._minute()
        self._begun.set()

    def _minute(self) -> int:
        return int(self._ports.clock.now()) // Step.MINUTE * Step.MINUTE

    def pull_all(self) -> None:
        """Ask each node for its looks, unless it still owes an answer."""
        for node in self._book.all():
            task = self._pulling.get(node.name)
            if node.state is not NodeState.DOWN and (task is None or task.done()):
                self._pulling[node.name] = asyncio.create_task(self.pull(node.name))

    async def pull(self, name: str) -> None:
        """Ask one node until it has no more; what goes wrong is left for the next second."""
        try:
            async with asyncio.timeout(PULL_WAIT_S):
                await self._begun.wait()
                while await self._pull_once(name):
                    pass
        except (GpupoolError, TimeoutError):
            pass
        except (TypeError, ValueError, LookupError) as error:  # a node that says what nobody understands
            log.warning("looks not understood", node=name, error=repr(error)[:200])

    async def _pull_once(self, name: str) -> bool:
        """Whether there is more to be had at once."""
        after = self._intake.after(name, kept=int(KEPT_S))
        looks = await self._ports.fabric.link(name).samples(after)
        self._intake.take(name, looks, after, self._ports.clock.monotonic())
        return bool(looks) and looks[-1].at < self._ports.clock.now() - BEHIND_S

    # -- writing -----------------------------------------------------------------------------------------------------

    async def write_if_due(self) -> None:
        """Write the minutes that are over, once in each; a write that fails is tried again a minute later."""
        now = self._minute()
        if now == self._written_in:
            return
        self._written_in = now
        self._intake.prune(self._ports.clock.now())
        await self.write(keep=now)

    async def write(self, keep: int | None = None) -> None:
        """Write all minutes but one. What the store does not take stays to be tried again, ten minutes of it."""
        due = self._intake.due(keep)
        if not due:
            return
        numbers = {name: number for minute in due for name, number in minute.numbers.items()}
        try:
            await self._ports.store.use_rows.save(all_of(due), numbers)
        except GpupoolError as error:
            lost = self._intake.put_back(due, KEPT_UNWRITTEN)
            log.warning("use not written", code=error.code, minutes=len(due), lost=lost)

    async def forget(self) -> None:
        """For ever, once an hour: rows go when they are old, minutes after two weeks, hours after two years."""
        while True:
            try:
                for step, keep_s in KEEP_S.items():
                    while await self._ports.store.use_rows.forget(
                        step, self._ports.clock.now() - keep_s, FORGET_AT_ONCE
                    ):
                        await self._ports.sleep(0.1)
            except GpupoolError as error:
                log.warning("could not forget old rows of use", code=error.code)
            await self._ports.sleep(FORGET_EVERY_S)

    async def close(self) -> None:
        """Write what there is; background work has ended."""
        await self.write()
