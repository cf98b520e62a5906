"""Wait reasons of many workloads at once, for lists; kept for a few seconds and shared by all viewers.

A reason alone is cheap; an estimate can take long in a large pool. Expensive estimates are computed one after the other
in a background task with limited time, and are known at the next call.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpupool.domain.errors import GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.people.access import Actor
from gpupool.scheduling.explain.wait_reason import Explanation, WaitCode
from gpupool.services.control.lookup import Lookup
from gpupool.services.explain.forked_worker import INLINE_COST_S
from gpupool.services.explain.wait_reason import WaitReasonService

REASON_BUDGET_S = 0.04  # of the control plane's time for reasons of one list; the rest comes with the next call
MAX_AGE_S = 10.0
MAX_AGE_OF_STARTING_S = 1.0  # of the reason that a workload is about to start
INTEREST_S = 30.0  # an estimate is computed only if a list requested it within this time
ESTIMATE_PAUSE_FACTOR = 3.0  # times the cost of an estimate: the pause before the next one
MAX_ENTRIES = 2_000


@dataclass(frozen=True, slots=True)
class _CachedReason:
    """A reason, when it was found, and when the estimate in it was made (0: never)."""

    why: Explanation
    at: float
    foretold_at: float = 0.0

    def is_old(self, now: float) -> bool:
        """Return whether the reason must be found again."""
        starting = self.why.code is WaitCode.STARTING_SOON
        return now - self.at >= (MAX_AGE_OF_STARTING_S if starting else MAX_AGE_S)


class WaitReasonCache:
    """Cache of wait reasons; ``monotonic`` is the clock."""

    def __init__(self, reasons: WaitReasonService, lookup: Lookup, monotonic: Callable[[], float]) -> None:
        self._reasons = reasons
        self._lookup = lookup
        self._monotonic = monotonic
        self._kept: OrderedDict[WorkloadId, _CachedReason] = OrderedDict()
        # Workloads without an estimate, and the time of the request.
        self._wanted: OrderedDict[WorkloadId, float] = OrderedDict()
        self._making: asyncio.Task[None] | None = None
        self._cost_s = 0.0  # of an estimate

    async def of(
        self,
        actor: Actor,
        wanted: Sequence[WorkloadId],
        *,
        estimates: bool = True,
        budget_s: float = REASON_BUDGET_S,
    ) -> dict[WorkloadId, Explanation]:
        """Return the known reasons for ``wanted``; unknown ones are computed in order, at least one per call.

        Without ``estimates`` none are computed; known ones are returned.
        """
        self._cost_s = self._reasons.worker.cost_s
        cheap = estimates and self._cost_s <= INLINE_COST_S
        began, asked = self._monotonic(), 0
        found: dict[WorkloadId, Explanation] = {}
        for workload in wanted:
            kept = self._kept.get(workload)
            if (kept is None or kept.is_old(began)) and (not asked or self._monotonic() - began < budget_s):
                asked += 1
                kept = await self._ask(actor, workload, foretell=cheap) or kept
            if kept is not None:
                found[workload] = kept.why
                if estimates and began - kept.foretold_at >= self._lasts_s:
                    self._wanted.setdefault(workload, began)
        if self._wanted and (self._making is None or self._making.done()):
            self._making = asyncio.create_task(self._make(actor), name="reasons")
        return found

    @property
    def _lasts_s(self) -> float:
        """Return the maximum age of an estimate; it grows with the cost."""
        return max(MAX_AGE_S, 100 * self._cost_s)

    async def _make(self, actor: Actor) -> None:
        """Compute requested estimates with pauses between them."""
        while self._wanted:
            workload, asked_at = self._wanted.popitem(last=False)
            if self._monotonic() - asked_at < INTEREST_S:
                await self._ask(actor, workload, foretell=True)
                self._cost_s = self._reasons.worker.cost_s
                await asyncio.sleep(ESTIMATE_PAUSE_FACTOR * self._cost_s)

    async def _ask(self, actor: Actor, workload: WorkloadId, *, foretell: bool) -> _CachedReason | None:
        try:
            why = await self._reasons.why(await self._lookup.workload(actor, workload), foretell=foretell)
        except GpupoolError:
            return None  # it was deleted meanwhile
        now = self._monotonic()
        before = self._kept.get(workload)
        if foretell:
            kept = _CachedReason(why, now, now)
        elif before is not None:  # the old estimate is kept until a new one is computed
            kept = _CachedReason(replace(why, **_future(before.why)), now, before.foretold_at)
        else:
            kept = _CachedReason(why, now)
        self._kept[workload] = kept
        self._kept.move_to_end(workload)
        while len(self._kept) > MAX_ENTRIES:
            self._kept.popitem(last=False)
        return kept


def _future(why: Explanation) -> dict[str, Any]:
    names = ("would_help", "estimate_s", "estimate_low_s", "estimate_high_s", "estimate_basis")
    return {name: getattr(why, name) for name in names}
