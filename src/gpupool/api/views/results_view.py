"""Views of the results of sweeps and of the efficiency of workloads."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from gpupool.api.schemas.work.workloads import EfficiencyView, ResultRow, ResultTable, SuggestionView
from gpupool.domain.work.efficiency import Efficiency
from gpupool.domain.work.workload import Replica, Workload

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
FIXED = ("index", "state", "attempt", "exit_status", "step", "ran_s")


def efficiency_view(workload: Workload, found: Efficiency) -> EfficiencyView:
    """Return the view of a comparison of request and use."""
    return EfficiencyView(
        workload=workload.id,
        measured_s=found.measured.samples_s,
        gpus=found.gpus.count,
        granted_memory_mib=found.gpus.memory_mib,
        permille=found.gpus.permille,
        gpu_memory_mib=found.measured.gpu_memory_mib,
        memory_mib=found.measured.memory_mib,
        gpu_percent=found.gpu_percent,
        gpu_memory_percent=found.gpu_memory_percent,
        cpu_percent=found.cpu_percent,
        memory_percent=found.memory_percent,
        suggestions=[SuggestionView.of(each) for each in found.suggestions],
    )


def result_table(workload: Workload, replicas: Sequence[Replica], now: float, *, private: bool) -> ResultTable:
    """Return parameters and metrics of all replicas; without ``private`` both are left out."""
    rows = [_row(workload, replica, now, private=private) for replica in replicas]
    return ResultTable(
        workload=workload.id,
        parameters=_names(row.parameters for row in rows),
        metrics=_names(row.metrics for row in rows),
        rows=rows,
    )


def _row(workload: Workload, replica: Replica, now: float, *, private: bool) -> ResultRow:
    own = workload.parameters[replica.index] if replica.index < len(workload.parameters) else {}
    ended = replica.finished_at if replica.finished_at is not None else now
    return ResultRow(
        index=replica.index,
        state=replica.state,
        attempt=replica.attempt,
        exit_status=replica.exit_status,
        step=replica.step,
        ran_s=None if replica.started_at is None else max(0.0, ended - replica.started_at),
        parameters=dict(own) if private else {},
        metrics=dict(replica.metrics) if private else {},
    )


def _names(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return all keys in the order in which they first occur."""
    return list(dict.fromkeys(name for row in rows for name in row))


def value_of(row: ResultRow, name: str) -> Any:
    """Return a value of a row: a fixed column, a metric, or a parameter; None if it has none."""
    if name in FIXED:
        return getattr(row, name)
    return row.metrics.get(name, row.parameters.get(name))


def ordered(rows: Iterable[ResultRow], key: str) -> list[ResultRow]:
    """Return rows sorted by a column (``-`` before its name: largest first); rows without a value are last."""
    name, reverse = key.removeprefix("-"), key.startswith("-")
    valued = [(value_of(row, name), row) for row in rows]
    known = [(value, row) for value, row in valued if value is not None]
    numbers = all(isinstance(value, int | float) for value, _ in known)
    known.sort(key=lambda pair: pair[0] if numbers else str(pair[0]), reverse=reverse)
    return [row for _, row in known] + [row for value, row in valued if value is None]


def to_csv(table: ResultTable) -> str:
    """Return the table as CSV with exact numbers; missing values are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([*FIXED, *table.parameters, *table.metrics])
    for row in table.rows:
        values = [*(getattr(row, name) for name in FIXED), *map(row.parameters.get, table.parameters)]
        writer.writerow([csv_cell(value) for value in (*values, *map(row.metrics.get, table.metrics))])
    return out.getvalue()


def csv_cell(value: Any) -> str:
    """Return the text of a cell that no spreadsheet evaluates as a formula."""
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_SIGNS) else str(value)
