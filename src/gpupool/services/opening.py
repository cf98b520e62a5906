"""When work that is bound to time windows may start, and when its time is over."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import datetime, tzinfo
from math import inf

from gpupool.domain.access import ProjectRules
from gpupool.domain.ids import WorkloadId
from gpupool.domain.windows import Windows, windows_of
from gpupool.domain.workload import Workload

_FAR_S = 15 * 86400.0  # windows that are not open together within two weeks never are


class Openings:
    """The windows of workloads in the pool's time zone, and when each of them is to be looked at again.

    The windows of a project bind its training (preemptible work), those of a workload itself whatever asks for them.
    Work bound by both starts when both are open.
    """

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._turns: list[tuple[float, WorkloadId]] = []
        self._turn_of: dict[WorkloadId, float] = {}

    def windows(self, workload: Workload, rules: ProjectRules) -> list[Windows]:
        """What binds a workload."""
        texts = [workload.windows, rules.windows if workload.preemptible else ()]
        return [windows_of(text, self._zone) for text in texts if text]

    def opens_at(self, workload: Workload, rules: ProjectRules, now: float) -> float:
        """``now`` if it may start, else when; infinite: never."""
        bound, t = self.windows(workload, rules), now
        while t < now + _FAR_S:
            later = max((windows.next_open(t) for windows in bound), default=t)
            if later == t:
                return t
            t = later
        return inf

    def closes_at(self, workload: Workload, rules: ProjectRules, now: float) -> float | None:
        """When it may start no longer; infinite: never; None: it may not now."""
        ends = [windows.closes_at(now) for windows in self.windows(workload, rules)]
        return min((end for end in ends if end is not None), default=inf) if None not in ends else None

    def sentence(self, workload: Workload, rules: ProjectRules, now: float) -> str:
        """``may start nights; next Monday 20:00 (Europe/Berlin)``."""
        texts = " and ".join(", ".join(w.text for w in windows.windows) for windows in self.windows(workload, rules))
        opens = self.opens_at(workload, rules, now)
        when = f"next {datetime.fromtimestamp(opens, self._zone):%A %H:%M}" if opens < inf else "these never meet"
        return f"may start {texts}; {when} ({self._zone})"

    def look_at(self, workload: Workload, rules: ProjectRules, now: float) -> bool:
        """Whether it may start now; remembers when that changes."""
        if not workload.windows and not rules.windows:
            return True
        opens = self.opens_at(workload, rules, now)
        closes = self.closes_at(workload, rules, now) or inf
        self._look_again(workload.id, opens if opens > now else closes)
        return opens <= now

    def _look_again(self, workload: WorkloadId, at: float) -> None:
        if at < inf and self._turn_of.get(workload) != at:
            self._turn_of[workload] = at
            heapq.heappush(self._turns, (at, workload))

    def due(self, now: float) -> bool:
        """Whether somebody's window has opened or closed."""
        return bool(self._turns) and self._turns[0][0] <= now

    def take_due(self, now: float) -> list[WorkloadId]:
        """Whose; they are to be looked at again."""
        found = []
        while self.due(now):
            at, workload = heapq.heappop(self._turns)
            if self._turn_of.get(workload) == at:
                del self._turn_of[workload]
                found.append(workload)
        return found


class WindowRules:
    """The windows of any workload, with the rules of its project, as of now."""

    def __init__(self, openings: Openings, rules_of: Callable[[str], ProjectRules], now: Callable[[], float]) -> None:
        self._openings, self._rules_of, self._now = openings, rules_of, now

    def opens_at(self, workload: Workload) -> float:
        """When its time windows let it start: now, later, or never (infinite)."""
        return self._openings.opens_at(workload, self._rules_of(workload.project), self._now())

    def note(self, workload: Workload) -> str:
        """Its time windows, and when they let it start next, in words."""
        return self._openings.sentence(workload, self._rules_of(workload.project), self._now())

    def may_close_on(self, workload: Workload) -> bool:
        """Whether it is training that is bound to time windows."""
        return workload.preemptible and bool(workload.windows or self._rules_of(workload.project).windows)

    def closed_on(self, workload: Workload, started_at: float, now: float) -> bool:
        """Whether training was started in its time windows, and they have closed."""
        rules = self._rules_of(workload.project)
        opened, now_open = (self._openings.closes_at(workload, rules, t) is not None for t in (started_at, now))
        return opened and not now_open
