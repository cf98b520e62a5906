"""A simulation as a table: a row for each job."""

from __future__ import annotations

import csv
import io

from gpupool.simulate.values import Fate, Record

COLUMNS = (
    "submitted_s",
    "project",
    "user",
    "gpus",
    "gpu_permille",
    "members",
    "duration_s",
    "wait_s",
    "delay_s",
    "preemptions",
    "wasted_gpu_s",
    "impossible",
)


def job_table(record: Record) -> str:
    """CSV with the columns of ``COLUMNS``; times in seconds, empty where a job did not start or end."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_row(fate) for fate in record.fates)
    return out.getvalue()


def _row(fate: Fate) -> tuple[object, ...]:
    job = fate.job
    asked = (job.request.count, job.request.permille, job.members, _number(job.duration_s))
    became = (_number(fate.wait_s), _number(fate.delay_s), fate.preemptions, _number(fate.wasted_permille_s / 1000))
    return (_number(job.submitted_s), job.project, job.user, *asked, *became, fate.impossible)


def _number(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f}".rstrip("0").rstrip(".")
