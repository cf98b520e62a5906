"""How a program's whole tree is brought to an end: gently, then not. Pure: time comes in, signals to send come out."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from gpupool.domain.supervision import ExitReason

SWEEP_GRACE_S = 2.0  # what is left when the program itself has ended gets at most this long
_FIRST_REPEAT_S = 0.05
_LONGEST_REPEAT_S = 1.0


@dataclass(slots=True)
class Ending:
    """Begun once, for one reason. ``kill_at`` is monotonic seconds; from then on it kills until nothing is left."""

    reason: ExitReason
    kill_at: float
    killing: bool = False
    _repeat_s: float = _FIRST_REPEAT_S

    def hasten(self, kill_at: float) -> None:
        """Kill no later than this."""
        self.kill_at = min(self.kill_at, kill_at)

    def due(self, now: float) -> bool:
        """Whether to send SIGKILL to what is left, now; sets when to look again."""
        if now < self.kill_at:
            return False
        self.killing = True
        self.kill_at = now + self._repeat_s
        self._repeat_s = min(self._repeat_s * 2, _LONGEST_REPEAT_S)
        return True


def gentle_signals(*, tty: bool) -> tuple[int, ...]:
    """What asks a tree to end: a hang-up first where there is a terminal; stopped programs are woken to hear it."""
    asked = (signal.SIGHUP, signal.SIGTERM) if tty else (signal.SIGTERM,)
    return (*asked, signal.SIGCONT)
