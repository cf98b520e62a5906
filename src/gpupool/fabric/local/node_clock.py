"""The clock of a node, compared with the pool's."""

from __future__ import annotations

from gpupool.services.clock import Clock

TOLERANCE_S = 2.0  # smaller differences are left: they do not matter, and cannot be measured on a busy machine


class NodeClock:
    """Estimates how far a node's clock is ahead of the pool's, from answers that contain the node's time.

    The two differ without time synchronisation, and on one machine after a change of the system clock, which the clock
    of the pool does not follow.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ahead_s = 0.0

    def now(self) -> float:
        """Return the pool's time, for ``compare``."""
        return self._clock.now()

    def compare(self, asked_at: float, node_time: float) -> None:
        """Take the node's time from the answer to a question of ``asked_at``, which has just arrived.

        The answer was made between the two, so the difference is known to half the time that it took. An answer that
        took too long changes nothing.
        """
        took_s = self._clock.now() - asked_at
        ahead_s, error_s = node_time - asked_at - took_s / 2, took_s / 2
        if abs(ahead_s) > TOLERANCE_S + error_s:
            self.ahead_s = ahead_s
        elif error_s < TOLERANCE_S:
            self.ahead_s = 0.0
