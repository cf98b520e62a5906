"""Data for estimates of start times: past run times, and the errors of past estimates.

The first estimate for a workload that has waited for a while is stored, and its actual wait when it starts. Later
estimates are corrected with these errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import structlog

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.work.workload import ReplicaState, Workload, WorkloadKind
from gpupool.scheduling.explain.background import Background, plain_name
from gpupool.scheduling.explain.calibration import MAX_OUTCOMES, NO_SLIP, PredictedStart, Slip, learn
from gpupool.scheduling.explain.wait_reason import Explanation
from gpupool.scheduling.holds.runtime_model import RunTimes
from gpupool.scheduling.values import ReplicaKey
from gpupool.services.control.engine import Engine
from gpupool.services.ports.store import StartEstimate

MIN_WAIT_S = 20.0  # before an estimate for a workload is stored
CHECK_INTERVAL_S = 15.0
MAX_PER_CHECK = 2  # estimates made only to learn from them
MAX_OPEN = 1_000  # stored estimates of workloads that have not started
MAX_ESTIMATES = 20_000  # rows of the table
MAX_HISTORIES = 32  # users, and projects, whose past run times are read
CACHE_S = 60.0  # lifetime of cached past run times and errors

log = structlog.get_logger("gpupool.estimates")
_Kind = tuple[str, str]


class EstimateService:
    """Reads past run times and errors for new estimates, and stores estimates to learn from them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[WorkloadId, StartEstimate] | None = None  # None: not loaded yet
        self._slip: tuple[float, Slip] = (float("-inf"), NO_SLIP)
        self._past: dict[_Kind, tuple[float, RunTimes | None]] = {}

    async def background(self, *others: Workload) -> Background:
        """Return the data for an estimate besides the scheduler's state; run times of ``others`` are read first."""
        return Background(await self._history(others), await self._errors(), self._name)

    def _name(self, key: ReplicaKey) -> str:
        workload = self._engine.mirror.workloads.get(key[0])
        if workload is None:
            return plain_name(key)
        return workload.name if workload.completions == 1 else f"{workload.name}/{key[1]}"

    # Past run times

    async def _history(self, others: Iterable[Workload]) -> dict[_Kind, RunTimes]:
        """Return run times of the pool, and of the projects and users of ``others`` and of live workloads."""
        live = (w for w in self._engine.mirror.workloads.values() if w.kind is not WorkloadKind.EXEC)
        pairs = dict.fromkeys((w.project, w.user) for w in (*others, *live))
        projects = dict.fromkeys((project, "") for project, _ in pairs)
        kinds = [("", ""), *list(pairs)[:MAX_HISTORIES], *list(projects)[:MAX_HISTORIES]]
        found = {kind: await self._run_times(kind) for kind in kinds}
        if len(self._past) > 4 * MAX_HISTORIES:
            self._past = {kind: read for kind, read in self._past.items() if kind in found}
        return {kind: past for kind, past in found.items() if past is not None}

    async def _run_times(self, kind: _Kind) -> RunTimes | None:
        now = self._engine.ports.clock.monotonic()
        read_at, past = self._past.get(kind, (float("-inf"), None))
        if now - read_at < CACHE_S:
            return past
        project, user = (name or None for name in kind)
        read = await self._engine.ports.store.runtime_history(project, user)
        past = RunTimes.of(read) if read else None
        self._past[kind] = (now, past)
        return past

    # Errors of past estimates

    async def _errors(self) -> Slip:
        now = self._engine.ports.clock.monotonic()
        if now - self._slip[0] >= CACHE_S:
            read = await self._engine.ports.store.estimates.newest(MAX_OUTCOMES, settled=True)
            learnt = learn(PredictedStart(e.predicted_s, e.actual_s) for e in read if e.actual_s is not None)
            self._slip = (now, learnt)
        return self._slip[1]

    async def note(self, workload: Workload, explanation: Explanation) -> None:
        """Store the first estimate for a workload that has waited a while and never started."""
        now = self._engine.ports.clock.now()
        predicted_s = explanation.foretold_s
        if predicted_s is None or workload.started_at is not None or now - workload.created_at < MIN_WAIT_S:
            return
        opened = await self._opened()
        if workload.id in opened or len(opened) >= MAX_OPEN:
            return
        made = opened[workload.id] = StartEstimate(workload.id, workload.project, now, predicted_s)
        await self._engine.ports.store.estimates.save([made])

    async def settle(self) -> None:
        """Store the actual wait of workloads that have started; delete estimates of those that never will."""
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
            await self._engine.ports.store.estimates.save(started)
        if never:
            await self._engine.ports.store.estimates.drop(never)
        for key in (*never, *(made.workload for made in started)):
            opened.pop(key, None)

    async def _opened(self) -> dict[WorkloadId, StartEstimate]:
        if self._open is None:
            read = await self._engine.ports.store.estimates.newest(MAX_OPEN, settled=False)
            if self._open is None:  # still not loaded by another task
                self._open = {made.workload: made for made in read}
        return self._open

    async def run(self, ask: Callable[[Workload], Awaitable[Explanation]]) -> None:
        """Run for ever: settle estimates, and make a few new ones by ``ask``, which stores them."""
        while True:
            await self._engine.ports.sleep(CHECK_INTERVAL_S)
            try:
                await self.settle()
                for workload in await self._without_estimate():
                    await ask(workload)
            except GpupoolError as error:
                log.warning("could not learn from estimates", code=error.code)

    async def _without_estimate(self) -> list[Workload]:
        """Return some workloads that have waited long enough and have no estimate."""
        opened, now = await self._opened(), self._engine.ports.clock.now()
        if len(opened) >= MAX_OPEN:
            return []
        found: list[Workload] = []
        for workload in self._engine.mirror.workloads.values():
            waits = self._engine.mirror.counts[workload.id][ReplicaState.PENDING] and workload.started_at is None
            if waits and workload.id not in opened and now - workload.created_at >= MIN_WAIT_S:
                found.append(workload)
                if len(found) == MAX_PER_CHECK:
                    break
        return found
