"""Events and their reason codes, as ``describe`` and ``why`` show them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.ids import WorkloadId


class Reason(StrEnum):
    """The reason of an event or of a state; events, `describe` and `why` show these codes."""

    SUBMITTED = "SUBMITTED"
    GRANTED = "GRANTED"
    GPUS_WANTED = "GPUS_WANTED"
    GPUS_RETURNED = "GPUS_RETURNED"
    GPUS_SUSPENDED = "GPUS_SUSPENDED"
    STARTED = "STARTED"
    EXITED = "EXITED"
    START_FAILED = "START_FAILED"
    IMAGE_FAILED = "IMAGE_FAILED"
    ENVIRONMENT_FAILED = "ENVIRONMENT_FAILED"
    RETRY = "RETRY"
    BACKOFF_EXHAUSTED = "BACKOFF_EXHAUSTED"
    REPEATED_FAILURE = "REPEATED_FAILURE"
    STOPPED_BY_USER = "STOPPED_BY_USER"
    SUSPENDED_BY_USER = "SUSPENDED_BY_USER"
    RESUMED_BY_USER = "RESUMED_BY_USER"
    RESTARTED_BY_USER = "RESTARTED_BY_USER"
    DELETED_BY_USER = "DELETED_BY_USER"
    CLIENT_GONE = "CLIENT_GONE"
    TIME_LIMIT = "TIME_LIMIT"
    MEMORY_LIMIT = "MEMORY_LIMIT"
    IDLE_LIMIT = "IDLE_LIMIT"
    IDLE_WARNING = "IDLE_WARNING"
    TIME_WARNING = "TIME_WARNING"
    NODE_WARNING = "NODE_WARNING"
    EXPIRED = "EXPIRED"
    EXTENDED = "EXTENDED"
    RELEASED = "RELEASED"
    WAIT_EXPIRED = "WAIT_EXPIRED"
    PREEMPTED = "PREEMPTED"
    WINDOW_CLOSED = "WINDOW_CLOSED"
    QUEUED_AGAIN = "QUEUED_AGAIN"
    ADOPTED = "ADOPTED"
    SHEPHERD_LOST = "SHEPHERD_LOST"
    NODE_RESTARTED = "NODE_RESTARTED"
    NODE_LOST = "NODE_LOST"
    LEASE_ENDED = "LEASE_ENDED"
    DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
    GANG_INCOMPLETE = "GANG_INCOMPLETE"
    GANG_RESTART = "GANG_RESTART"
    GANG_DONE = "GANG_DONE"
    HEAD_READY = "HEAD_READY"
    HEAD_NOT_READY = "HEAD_NOT_READY"
    BACKUP_FAILED = "BACKUP_FAILED"
    WORKSPACE_UNUSED = "WORKSPACE_UNUSED"
    SERVICE_CHANGED = "SERVICE_CHANGED"
    SERVICE_NOT_READY = "SERVICE_NOT_READY"
    SERVICE_WARNING = "SERVICE_WARNING"
    GPU_CHECKED = "GPU_CHECKED"
    CORDONED = "CORDONED"
    UNCORDONED = "UNCORDONED"
    CHANGED = "CHANGED"
    SIGNED_IN = "SIGNED_IN"
    SIGNED_OUT = "SIGNED_OUT"
    SIGN_IN_FAILED = "SIGN_IN_FAILED"


@dataclass(frozen=True, slots=True)
class Event:
    """A record of who did what to which workload, with a code and a sentence. ``id`` grows."""

    at: float
    actor: str
    reason: Reason
    message: str
    workload: WorkloadId | None = None
    index: int | None = None
    target: str = ""
    id: int = 0
