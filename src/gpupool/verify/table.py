"""The report as a table of text."""

from __future__ import annotations

from collections.abc import Iterator

from gpupool.verify.results import Check, VerifyReport

EMULATED_NOTE = "The GPUs are emulated: results are computed on the CPU, and rates are simulated."
NODE = "node"  # in the column of GPUs
_HEAD = ("GPU", "CHECK", "RESULT", "DETAILS")


def table(report: VerifyReport) -> Iterator[str]:
    """Yield the lines: one for each check, then the outcome of each GPU."""
    rows = [_HEAD, *(_row(NODE, check) for check in report.checks)]
    rows += [_row(str(gpu.index), check) for gpu in report.gpus for check in gpu.checks]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row[3]]).rstrip()
    yield ""
    for gpu in report.gpus:
        yield f"GPU {gpu.index} of {report.node} ({gpu.model or 'unknown model'}): {gpu.outcome}"
    if report.emulated:
        yield EMULATED_NOTE


def _row(subject: str, check: Check) -> tuple[str, str, str, str]:
    values = ", ".join(f"{name} {value:.6g}" for name, value in check.values.items())
    return subject, check.name, str(check.outcome), "; ".join(part for part in (check.note, values) if part)
