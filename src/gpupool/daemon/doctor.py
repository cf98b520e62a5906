"""``gpupool doctor``: everything that can be wrong with a machine or a pool's folders, each with a remedy."""

from __future__ import annotations

from gpupool.daemon import (
    doctor_checks_database,
    doctor_checks_disk,
    doctor_checks_gpu,
    doctor_checks_host,
    doctor_checks_sign_in,
    doctor_checks_state,
)
from gpupool.daemon.doctor_checks import DoctorContext, Finding, Level, NamedCheck, warning

__all__ = ["CHECKS", "DoctorContext", "Finding", "Level", "exit_status", "run_checks"]

CHECKS: list[NamedCheck] = [
    *doctor_checks_gpu.CHECKS,
    *doctor_checks_disk.CHECKS,
    *doctor_checks_host.CHECKS,
    *doctor_checks_state.CHECKS,
    *doctor_checks_database.CHECKS,
    *doctor_checks_sign_in.CHECKS,
]


def run_checks(context: DoctorContext) -> list[Finding]:
    """All findings, in the order of the checks. Never raises: a check that fails is a warning of its own."""
    return [finding for check in CHECKS for finding in _guarded(check, context)]


def exit_status(findings: list[Finding]) -> int:
    """1 when there is a problem, else 0: warnings do not fail a script."""
    return int(any(finding.level is Level.PROBLEM for finding in findings))


def _guarded(check: NamedCheck, context: DoctorContext) -> list[Finding]:
    name, look = check
    findings: list[Finding] = []
    try:
        findings.extend(look(context))
    except Exception as error:  # noqa: BLE001 - one check that fails must not hide what the others find
        findings.append(
            warning(
                name, f"This check failed: {type(error).__name__}: {error}.", "Please report it with this sentence."
            )
        )
    return findings
