"""The termination of a program's process tree, and the reports of its end.

A tree is asked to end first and killed later. ``Termination`` is pure: time comes in, decisions come out.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from dataclasses import dataclass

from gpupool.domain.work.program.supervision import ExitReason, ExitReport

SWEEP_GRACE_S = 2.0  # for processes that are left when the program itself has ended
ASK_BEFORE_S = 5.0  # at most this long before the kill; until then the program can use its notice
ASK_BEFORE_PART = 0.25  # of the grace, where that is less
_FIRST_REPEAT_S = 0.05
_MAX_REPEAT_S = 1.0


@dataclass(slots=True)
class Termination:
    """The termination of a program, for one reason. Times are monotonic seconds. From ``kill_at`` on it kills.

    Until ``ask_at`` the program only has its notice; then it is asked to end. None: it has been asked.
    """

    reason: ExitReason
    kill_at: float
    killing: bool = False
    ask_at: float | None = None
    _repeat_s: float = _FIRST_REPEAT_S

    def shorten_to(self, kill_at: float) -> None:
        """Kill no later than this."""
        self.kill_at = min(self.kill_at, kill_at)

    def next_at(self) -> float:
        """Return when to act next."""
        return self.kill_at if self.ask_at is None else min(self.kill_at, self.ask_at)

    def must_ask(self, now: float) -> bool:
        """Return True once, when the tree has to be asked to end."""
        if self.ask_at is None or now < self.ask_at:
            return False
        self.ask_at = None
        return True

    def must_kill(self, now: float) -> bool:
        """Return True if SIGKILL has to be sent now, and set the time of the next attempt."""
        if now < self.kill_at:
            return False
        self.killing = True
        self.kill_at = now + self._repeat_s
        self._repeat_s = min(self._repeat_s * 2, _MAX_REPEAT_S)
        return True


def ask_at(now: float, grace_s: float) -> float:
    """Return when to ask a program to end that has been given notice."""
    return now + grace_s - min(ASK_BEFORE_S, grace_s * ASK_BEFORE_PART)


def gentle_signals(*, tty: bool) -> tuple[int, ...]:
    """Return the signals that ask a tree to end: SIGHUP first with a terminal; SIGCONT wakes stopped programs."""
    asked = (signal.SIGHUP, signal.SIGTERM) if tty else (signal.SIGTERM,)
    return (*asked, signal.SIGCONT)


def report_not_started(status: int, why: str, reason: ExitReason = ExitReason.START_FAILED) -> ExitReport:
    """Return the report of a program that could not be executed; ``status`` is as a shell gives it."""
    return ExitReport(reason, status, None, why, time.time())


def report_never_started(reason: ExitReason, client_wait_s: float) -> ExitReport:
    """Return the report of a program that was stopped before it was forked."""
    message = "Stopped before it started."
    if reason is ExitReason.CLIENT_GONE:
        message = f"No client attached within {client_wait_s:.0f} seconds."
    return ExitReport(reason, None, None, message, time.time())


def report_exit(reason: ExitReason, status: int, starved_mib: int | None, processes: int | None) -> ExitReport:
    """Return the report of a program that ended with a wait status.

    ``starved_mib`` is its memory limit if the kernel killed it for that; ``processes`` is its process limit if it was
    refused another process. CPU time and memory are those of all processes that were waited for.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = None if signum is not None else os.WEXITSTATUS(status)
    message = ""
    starved = starved_mib is not None and (signum == signal.SIGKILL or code == 128 + signal.SIGKILL)
    if starved:
        message = f"Killed: it exceeded its limit of {starved_mib} MiB of host memory."
    elif processes is not None and status != 0:
        message = f"Reached its limit of {processes} processes."
    cpu_seconds = round(used.ru_utime + used.ru_stime, 6)
    return ExitReport(reason, code, signum, message, time.time(), cpu_seconds, used.ru_maxrss // 1024, starved)
