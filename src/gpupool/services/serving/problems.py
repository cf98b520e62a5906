"""Problems of services that their owners should know of: what is wrong, since when, and what would help. Pure.

The controller looks once a second. A problem counts after it has lasted for a while. Its owner is warned then, and
again after ``REPEAT_S`` if it begins anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from gpupool.domain.units import format_duration

NOT_READY_S = 300.0
FULL_S = 1800.0
REFUSED_S = 300.0
REPEAT_S = 6 * 3600.0


class ProblemKind(StrEnum):
    """The kind of a problem; the sentence of a problem begins with it."""

    NOT_READY = "not ready"
    REFUSED = "requests refused"
    FULL = "at its maximum"
    INTERRUPTED = "replicas interrupted"


@dataclass(frozen=True, slots=True)
class ServiceProblem:
    """A problem that lasts, as a sentence for people."""

    kind: ProblemKind
    message: str


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """A service at one moment.

    ``wanted`` replicas would be right for its requests if there were no maximum. ``refused`` counts answers 503 since
    the last look. ``interrupted`` replicas were preempted or lost their node, and wait for GPUs again. ``reason`` says
    why no replica is ready.
    """

    stopped: bool = False
    desired: int = 1
    ready: int = 1
    maximum: int = 1
    scales: bool = False
    wanted: int = 1
    refused: int = 0
    interrupted: int = 0
    reason: str = ""


@dataclass(slots=True)
class ServiceProblems:
    """The problems of one service over time."""

    unready_since: float | None = None
    full_since: float | None = None
    refusals: deque[tuple[float, int]] = field(default_factory=deque)
    now: tuple[ServiceProblem, ...] = ()
    warned: dict[ProblemKind, float] = field(default_factory=dict)

    def look(self, facts: ServiceFacts, now: float) -> list[ServiceProblem]:
        """Record the facts, and return the problems to warn of now; times do not decrease."""
        unready = not facts.stopped and facts.desired > 0 and facts.ready == 0
        full = not facts.stopped and facts.scales and facts.wanted >= facts.maximum
        self.unready_since = (now if self.unready_since is None else self.unready_since) if unready else None
        self.full_since = (now if self.full_since is None else self.full_since) if full else None
        if facts.refused and not facts.stopped:
            self.refusals.append((now, facts.refused))
        while self.refusals and now - self.refusals[0][0] >= REFUSED_S:
            self.refusals.popleft()
        self.now = tuple(self._problems(facts, now))
        new = [each for each in self.now if now - self.warned.get(each.kind, -REPEAT_S) >= REPEAT_S]
        self.warned |= {each.kind: now for each in new}
        return new

    def _problems(self, facts: ServiceFacts, now: float) -> list[ServiceProblem]:
        found = []
        if self.unready_since is not None and now - self.unready_since >= NOT_READY_S:
            why = f": {facts.reason}" if facts.reason else ""
            said = f"for {format_duration(now - self.unready_since)}{why}"
            found.append(ServiceProblem(ProblemKind.NOT_READY, f"{ProblemKind.NOT_READY} {said}"))
        if refused := sum(count for _, count in self.refusals):
            said = f"{refused} were answered with 503 in the last {format_duration(REFUSED_S)}"
            found.append(ServiceProblem(ProblemKind.REFUSED, f"{ProblemKind.REFUSED}: {said}"))
        if self.full_since is not None and now - self.full_since >= FULL_S:
            said = f"of {facts.maximum} replicas for {format_duration(now - self.full_since)}"
            found.append(ServiceProblem(ProblemKind.FULL, f"{ProblemKind.FULL} {said}"))
        if facts.interrupted and not facts.stopped:
            said = f"{facts.interrupted} wait for GPUs again"
            found.append(ServiceProblem(ProblemKind.INTERRUPTED, f"{ProblemKind.INTERRUPTED}: {said}"))
        return found


def recalled(message: str) -> ProblemKind | None:
    """Return the kind of the problem in a stored warning."""
    return next((kind for kind in ProblemKind if message.startswith(kind)), None)
