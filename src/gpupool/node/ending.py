"""How a program's whole tree is brought to an end: gently, then not. Pure: time comes in, signals to send come out."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from gpupool.domain.supervision import ExitReason

SWEEP_GRACE_S = 2.0  # what is left when the program itself has ended gets at most this long
ASK_BEFORE_S = 5.0  # the kill, at most: a program that was given notice has the time until then for itself
ASK_BEFORE_PART = 0.25  # of the grace, where that is less
_FIRST_REPEAT_S = 0.05
_LONGEST_REPEAT_S = 1.0


@dataclass(slots=True)
class Ending:
    """Begun once, for one reason. Times are monotonic seconds; from ``kill_at`` on it kills until nothing is left.

    ``ask_at``: until then the program has been given notice only; then it is asked to end. None: it has been asked.
    """

    reason: ExitReason
    kill_at: float
    killing: bool = False
    ask_at: float | None = None
    _repeat_s: float = _FIRST_REPEAT_S

    def hasten(self, kill_at: float) -> None:
        """Kill no later than this."""
        self.kill_at = min(self.kill_at, kill_at)

    def next_at(self) -> float:
        """When there is something to do."""
        return self.kill_at if self.ask_at is None else min(self.kill_at, self.ask_at)

    def must_ask(self, now: float) -> bool:
        """Whether to ask the tree to end, now."""
        if self.ask_at is None or now < self.ask_at:
            return False
        self.ask_at = None
        return True

    def due(self, now: float) -> bool:
        """Whether to send SIGKILL to what is left, now; sets when to look again."""
        if now < self.kill_at:
            return False
        self.killing = True
        self.kill_at = now + self._repeat_s
        self._repeat_s = min(self._repeat_s * 2, _LONGEST_REPEAT_S)
        return True


def ask_at(now: float, grace_s: float) -> float:
    """When to ask a program to end that has been given notice of it."""
    return now + grace_s - min(ASK_BEFORE_S, grace_s * ASK_BEFORE_PART)


def gentle_signals(*, tty: bool) -> tuple[int, ...]:
    """What asks a tree to end: a hang-up first where there is a terminal; stopped programs are woken to hear it."""
    asked = (signal.SIGHUP, signal.SIGTERM) if tty else (signal.SIGTERM,)
    return (*asked, signal.SIGCONT)
