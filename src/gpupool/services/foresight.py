"""What answers about the future rest on: how long work ran before, and how far off past estimates of starts were.

The first estimate for whoever waits for a while is written down, and when it starts, what came of it: from these the
next estimates are corrected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.workload import ReplicaState, Workload, WorkloadKind
from gpupool.scheduling.background import Background, plain_name
from gpupool.scheduling.calibration import MOST_OUTCOMES, Outcome, Slip, learn
from gpupool.scheduling.explain import Explanation
from gpupool.scheduling.runtimes import RunTimes
from gpupool.scheduling.values import ReplicaKey
from gpupool.services.engine import Engine
from gpupool.services.ports import StartEstimate

NOTED_AFTER_S = 20.0  # whoever has waited for so long has an estimate noted
LOOK_EVERY_S = 15.0
MOST_PER_LOOK = 2  # estimates made for nobody but to learn from
MOST_OPEN = 1_000  # estimates of which it is not known yet what came of them
MOST_KEPT = 20_000  # rows of the table
MOST_HISTORIES = 32  # users, and projects, whose past work is looked up
FRESH_S = 60.0  # for so long what has been read of the past is good enough

log = structlog.get_logger("gpupool.foresight")
_Kind = tuple[str, str]


class Foresight:
    """Reads the past for answers about the future, and writes down what it takes to learn from them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[WorkloadId, StartEstimate] | None = None  # None: not read yet
        self._slips: tuple[float, Mapping[str, Slip]] = (float("-inf"), {})
        self._past: dict[_Kind, tuple[float, RunTimes | None]] = {}

    async def background(self, *others: Workload) -> Background:
        """What an answer may rest on beside the state of the scheduler; ``others`` are looked up first."""
        return Background(await self._history(others), await self._learnt(), self._name)

    def _name(self, key: ReplicaKey) -> str:
        workload = self._engine.mirror.workloads.get(key[0])
        if workload is None:
            return plain_name(key)
        return workload.name if workload.completions == 1 else f"{workload.name}/{key[1]}"

    # How long work ran

    async def _history(self, others: Iterable[Workload]) -> dict[_Kind, RunTimes]:
        """Of the whole pool, and of the projects and users of ``others`` and of those who run or wait now."""
        live = (w for w in self._engine.mirror.workloads.values() if w.kind is not WorkloadKind.EXEC)
        pairs = dict.fromkeys((w.project, w.user) for w in (*others, *live))
        projects = dict.fromkeys((project, "") for project, _ in pairs)
        kinds = [("", ""), *list(pairs)[:MOST_HISTORIES], *list(projects)[:MOST_HISTORIES]]
        found = {kind: await self._run_times(kind) for kind in kinds}
        if len(self._past) > 4 * MOST_HISTORIES:
            self._past = {kind: read for kind, read in self._past.items() if kind in found}
        return {kind: past for kind, past in found.items() if past is not None}

    async def _run_times(self, kind: _Kind) -> RunTimes | None:
        now = self._engine.ports.clock.monotonic()
        read_at, past = self._past.get(kind, (float("-inf"), None))
        if now - read_at < FRESH_S:
            return past
        project, user = (name or None for name in kind)
        read = await self._engine.ports.store.runtime_history(project, user)
        past = None if read is None else RunTimes(read.samples, read.median_s, read.p25_s, read.p75_s)
        self._past[kind] = (now, past)
        return past

    # How far off estimates were

    async def _learnt(self) -> Mapping[str, Slip]:
        now = self._engine.ports.clock.monotonic()
        if now - self._slips[0] >= FRESH_S:
            read = await self._engine.ports.store.newest_estimates(10 * MOST_OUTCOMES, settled=True)
            outcomes = [Outcome(e.project, e.predicted_s, e.actual_s) for e in read if e.actual_s is not None]
            self._slips = (now, learn(outcomes))
        return self._slips[1]

    async def note(self, workload: Workload, told: Explanation) -> None:
        """Write down the first estimate for a workload that has waited a while and never started."""
        now = self._engine.ports.clock.now()
        if told.foretold_s is None or workload.started_at is not None or now - workload.created_at < NOTED_AFTER_S:
            return
        opened = await self._opened()
        if workload.id in opened or len(opened) >= MOST_OPEN:
            return
        made = opened[workload.id] = StartEstimate(workload.id, workload.project, now, told.foretold_s)
        await self._engine.ports.store.save_estimates([made])

    async def settle(self) -> None:
        """Write down what came of estimates whose workloads have started; forget those that never will."""
        opened = await self._opened()
        started: list[StartEstimate] = []
        never: list[WorkloadId] = []
        for key, made in list(opened.items()):
            workload = self._engine.mirror.workloads.get(key) or await self._engine.ports.store.get_workload(key)
            if workload is not None and workload.started_at is not None:
                waited = max(0.0, workload.started_at - made.made_at)
                started.append(StartEstimate(key, made.project, made.made_at, made.predicted_s, waited))
            elif workload is None or workload.state.final:
                never.append(key)
        if started:
            await self._engine.ports.store.save_estimates(started)
        if never:
            await self._engine.ports.store.drop_estimates(never)
        for key in (*never, *(made.workload for made in started)):
            opened.pop(key, None)

    async def _opened(self) -> dict[WorkloadId, StartEstimate]:
        if self._open is None:
            read = await self._engine.ports.store.newest_estimates(MOST_OPEN, settled=False)
            if self._open is None:  # nobody else has read them meanwhile
                self._open = {made.workload: made for made in read}
        return self._open

    async def run(self, ask: Callable[[Workload], Awaitable[Explanation]]) -> None:
        """For ever: look what came of estimates, and make a few (by ``ask``, which notes them) to learn from."""
        while True:
            await self._engine.ports.sleep(LOOK_EVERY_S)
            try:
                await self.settle()
                for workload in await self._unforeseen():
                    await ask(workload)
            except GpupoolError as error:
                log.warning("could not learn from estimates", code=error.code)

    async def _unforeseen(self) -> list[Workload]:
        """Some of those who have waited long enough and have no estimate yet."""
        opened, now = await self._opened(), self._engine.ports.clock.now()
        if len(opened) >= MOST_OPEN:
            return []
        found: list[Workload] = []
        for workload in self._engine.mirror.workloads.values():
            waits = self._engine.mirror.counts[workload.id][ReplicaState.PENDING] and workload.started_at is None
            if waits and workload.id not in opened and now - workload.created_at >= NOTED_AFTER_S:
                found.append(workload)
                if len(found) == MOST_PER_LOOK:
                    break
        return found
