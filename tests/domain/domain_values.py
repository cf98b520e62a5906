"""Workloads, replicas and reports for the tests of the state machines."""

from __future__ import annotations

from typing import Any

from gpupool.domain.events import Reason
from gpupool.domain.ids import Epoch, WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.work.program.supervision import ExitReason, ExitReport
from gpupool.domain.work.workload import (
    Program,
    Replica,
    ReplicaState,
    RestartPolicy,
    Retry,
    Workload,
    WorkloadKind,
)

ID = WorkloadId("w0123456789")
NEVER = Retry()
TWICE = Retry(RestartPolicy.ON_FAILURE, 2)
FOREVER = Retry(RestartPolicy.ALWAYS, 2)


def workload(kind: WorkloadKind = WorkloadKind.TRAINING, retry: Retry = NEVER, **changes: Any) -> Workload:
    bound = changes.pop("client_bound", False)
    plain: dict[str, Any] = {
        "id": ID,
        "name": "job",
        "kind": kind,
        "project": "default",
        "user": "ada",
        "program": Program(("true",), client_bound=bound),
        "gpus": GpuRequest(permille=500),
        "created_at": 0.0,
        "retry": retry,
    }
    return Workload(**{**plain, **changes})


def replica(state: ReplicaState = ReplicaState.PENDING, next_reason: Reason | None = None, **changes: Any) -> Replica:
    held: dict[str, Any] = {}
    if state.placed:
        held = {"lease": Epoch(7), "node": "here", "attempt": 1, "last_active_at": 1.0}
    if state in {ReplicaState.RUNNING, ReplicaState.STOPPING}:
        held |= {"pid": 4711, "started_at": 2.0}
    return Replica(ID, 0, state, next_reason=next_reason, **{**held, **changes})


def report(reason: ExitReason = ExitReason.EXITED, code: int | None = 0, signal: int | None = None) -> ExitReport:
    return ExitReport(reason, code, signal, "", 50.0)
