"""The workload that runs the checks on a node: its request, the report in its output, and the reason of a cordon."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gpupool.domain.work.program.supervision import NODE_PROGRAM
from gpupool.verify.results import CheckOutcome, Subject, VerifyReport

PROJECT = "gpupool-maintenance"
PROGRAM = "verify/__main__.py"
LABEL = "gpupool.io/verify"  # of workloads that check GPUs; its value is the node
SLICE_LABEL = "gpupool.io/verify-slice"  # of those that check a slice: their rates are not compared
IDLE_LABEL = "gpupool.io/verify-idle"  # of those that the pool started by itself, together with LABEL
MAX_TIME_S = 1800.0
MAX_GPUS = 16  # of a node, for the time limit
KEEP = "30d"
MAX_REASON = 200


def time_limit_s(level: int, burn_s: float) -> float:
    """Return the longest time that the checks of a node may take."""
    return MAX_TIME_S + (MAX_TIME_S + burn_s * MAX_GPUS if level > 1 else 0)


def request_body(
    node: str, gpus: dict[str, Any], labels: dict[str, str], words: Sequence[str], limit_s: float
) -> dict[str, Any]:
    """Return the request of a workload that checks ``gpus`` of a node; ``words`` are arguments of the program."""
    return {
        "name": f"verify-{node}"[:63].rstrip("-._"),
        "project": PROJECT,
        "command": [NODE_PROGRAM, PROGRAM, "--json", "--node", node, *words],
        "gpus": {**gpus, "labels": {"node": node}},
        "labels": labels,
        "priority": "low",
        "restart": "never",
        "max_time": limit_s,
        "ttl": KEEP,
    }


def read_report(output: bytes) -> VerifyReport | None:
    """Return the report in the output of the workload; None if there is none."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.startswith("{")]
    try:
        return VerifyReport.from_dict(json.loads(lines[-1])) if lines else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def findings(gpu: Subject) -> str:
    """Return the checks that found something, with their sentences; empty if there are none."""
    bad = [check for check in gpu.checks if check.outcome in {CheckOutcome.SUSPECT, CheckOutcome.FAIL}]
    return "; ".join(f"{check.name}: {check.note}" for check in bad)


def cordon_reason(gpu: Subject) -> str:
    """Return why a GPU that failed is cordoned."""
    failed = next(check for check in gpu.checks if check.outcome is CheckOutcome.FAIL)
    return f"verify: {failed.name}: {failed.note}"[:MAX_REASON]
