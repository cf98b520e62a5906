"""A report as comma-separated values: one table, exact numbers, nothing that a spreadsheet would execute."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from gpupool.domain.usage import UsageLine, WaitLine
from gpupool.services.reports import Report

HEAD = (
    *("by", "since", "until", "key", "name", "project", "user", "allocated_gpu_hours", "requested_gpu_hours"),
    *("used_gpu_hours", "idle_gpu_hours", "measured_gpu_hours", "leases", "cost", "currency"),
    *("waits", "wait_mean_s", "wait_p50_s", "wait_p90_s", "wait_p99_s"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(report: Report) -> str:
    """One row for each line. What is not known is empty: not measured, no rate, nobody started."""
    waits = {line.key: line for line in report.waits}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(HEAD)
    for line in report.lines:
        writer.writerow([_cell(value) for value in _row(report, line, waits.get(line.key))])
    return out.getvalue()


def _row(report: Report, line: UsageLine, wait: WaitLine | None) -> Iterator[str | float | int | None]:
    time = line.time
    yield from (report.by.value, line.at, line.until, line.key, line.name, line.project, line.user)
    for amount in (time.allocated_s, time.requested_s, time.used_s, time.idle_s, time.measured_s):
        yield None if amount is None else amount / 3600
    yield from (time.leases, line.cost, report.currency)
    yield from (None,) * 5 if wait is None else (wait.started, wait.mean_s, wait.p50_s, wait.p90_s, wait.p99_s)


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else str(value)
