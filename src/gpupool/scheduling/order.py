"""The order of a project's waiting work, beyond priority: by fairness among users, or the shortest expected first.

Each replica has a place in its queue: the time at which it counts as submitted. It is settled when the replica joins
the queue, so that only what is submitted within a bounded time after it can overtake it: nobody starves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpupool.domain.units import WHOLE_GPU
from gpupool.scheduling.pastruns import PastRuns

MOST_LATE_S = 7 * 86400.0  # nobody's place is later behind the submission for being expected to be long
TURN_LATE_S = 86400.0  # at least so much later is the place of who has had a turn, and evicts nobody before then


class Order(StrEnum):
    """Who is first among equals of one priority in a project."""

    FAIR = "fair"  # the user who holds less, then who queued first
    SHORTEST = "shortest"  # who is expected to use less GPU time; users are regarded as one


@dataclass(slots=True)
class Ordering:
    """The order in force, with what is known of past run times.

    ``turn_s``: who has run for so long has had a turn, and makes way for those who have not; None: nobody does.
    """

    order: Order = Order.FAIR
    turn_s: float | None = None
    past: PastRuns = field(default_factory=PastRuns)

    @property
    def by_user(self) -> bool:
        """Whether the user who holds less comes first."""
        return self.order is Order.FAIR

    def late_s(self, project: str, user: str, permille: int, served_s: float) -> float:
        """How much later than it did a replica counts as submitted.

        With SHORTEST by the GPU time, in seconds of one GPU, that such work took so far; ``permille`` is what it asks
        for, with its gang. Who has had a turn: by as long as it ran, and at least a day.
        """
        late = 0.0
        if self.order is Order.SHORTEST:
            expected = self.past.mean_s(project, user, permille)
            late = 0.0 if expected is None else min(MOST_LATE_S, expected * permille / WHOLE_GPU)
        return late + (max(TURN_LATE_S, served_s) if self.had_turn(served_s) else 0.0)

    def had_turn(self, served_s: float) -> bool:
        """Whether who has run for so long, all starts together, has had a turn."""
        return self.turn_s is not None and served_s >= self.turn_s
