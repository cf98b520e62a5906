"""``gpupool doctor``: all checks of a machine and of a pool's folders, each with a remedy."""

from __future__ import annotations

from gpupool.daemon.doctor import database, disk, gpu, host, peers, state
from gpupool.daemon.doctor.check import DoctorContext, Finding, NamedCheck, Severity, warning

__all__ = ["CHECKS", "DoctorContext", "Finding", "Severity", "exit_status", "run_checks"]

CHECKS: list[NamedCheck] = [
    *gpu.CHECKS,
    *disk.CHECKS,
    *host.CHECKS,
    *state.CHECKS,
    *database.CHECKS,
    *peers.CHECKS,
]


def run_checks(context: DoctorContext) -> list[Finding]:
    """Return all findings in the order of the checks. Never raises: a failed check becomes a warning."""
    return [finding for check in CHECKS for finding in _guarded(check, context)]


def exit_status(findings: list[Finding]) -> int:
    """Return 1 if there is a problem, else 0: warnings do not fail a script."""
    return int(any(finding.level is Severity.PROBLEM for finding in findings))


def _guarded(check: NamedCheck, context: DoctorContext) -> list[Finding]:
    name, look = check
    findings: list[Finding] = []
    try:
        findings.extend(look(context))
    except Exception as error:  # noqa: BLE001 - a failed check must not hide the findings of others
        findings.append(
            warning(name, f"This check failed: {type(error).__name__}: {error}.", "Report it with this message.")
        )
    return findings
