"""What became of a program, put in a report."""

from __future__ import annotations

import os
import resource
import signal
import time

from gpupool.domain.supervision import ExitReason, ExitReport


def not_started(status: int, why: str) -> ExitReport:
    """It could not be executed; ``status`` is what a shell would give."""
    return ExitReport(ExitReason.START_FAILED, status, None, why, time.time())


def never_began(reason: ExitReason, client_wait_s: float) -> ExitReport:
    """It was called off before it was forked."""
    message = "It was stopped before it began."
    if reason is ExitReason.CLIENT_GONE:
        message = f"No client attached within {client_wait_s:.0f} seconds."
    return ExitReport(reason, None, None, message, time.time())


def ended(reason: ExitReason, status: int, starved_mib: int | None) -> ExitReport:
    """It ran and ended with a wait status; ``starved_mib`` is the memory limit if the kernel killed for it.

    Times and memory are those of everything it ever ran, as far as it was waited for.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = None if signum is not None else os.WEXITSTATUS(status)
    message = ""
    if starved_mib is not None and (signum == signal.SIGKILL or code == 128 + signal.SIGKILL):
        message = f"Killed: it needed more than its {starved_mib} MiB of host memory."
    cpu_seconds = round(used.ru_utime + used.ru_stime, 6)
    return ExitReport(reason, code, signum, message, time.time(), cpu_seconds, used.ru_maxrss // 1024)
