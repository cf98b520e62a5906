"""The end of a workload or replica: the rule that ended it, the sentence with numbers, who decided, and what to do.

``lifecycle`` records the reason and the sentence once, with the transition. Commands, API, client, pages and messages
show the record that is built here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpupool.domain.events import Reason
from gpupool.domain.units import format_duration, format_mib
from gpupool.domain.work.workload import Replica, ReplicaState, Workload


class DecidedBy(StrEnum):
    """The side whose decision or failure ended a program."""

    PROGRAM = "program"  # it ended by itself, or could not be started as requested
    USER = "user"
    CLIENT = "client"  # the command that it was bound to
    POOL = "pool"  # a rule or limit
    NODE = "node"  # the machine or its agent failed


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a workload or of one replica. ``sentence`` has no full stop; ``remedy`` may be empty.

    ``user`` is the user who stopped it, and empty if no user did. ``index`` is the replica that decided.
    """

    code: Reason
    sentence: str
    decided_by: DecidedBy
    user: str = ""
    remedy: str = ""
    exit_status: int | None = None
    index: int = 0

    @property
    def line(self) -> str:
        """Return the sentence with its code."""
        return f"{self.sentence} [{self.code}]"


@dataclass(frozen=True, slots=True)
class Retrying:
    """The next attempt after a failure: number ``attempt`` of at most ``attempts``, not before ``next_at``."""

    attempt: int
    attempts: int
    next_at: float


_BY_USER = frozenset({Reason.STOPPED_BY_USER, Reason.RELEASED, Reason.SUSPENDED_BY_USER, Reason.DELETED_BY_USER})
_BY_NODE = frozenset({Reason.NODE_LOST, Reason.NODE_RESTARTED, Reason.SHEPHERD_LOST})
_BY_PROGRAM = frozenset(
    {
        Reason.EXITED,
        Reason.START_FAILED,
        Reason.IMAGE_FAILED,
        Reason.ENVIRONMENT_FAILED,
        Reason.BACKOFF_EXHAUSTED,
        Reason.REPEATED_FAILURE,
    }
)
_REMEDIES = {
    Reason.EXITED: "see its output: gpupool logs {replica}",
    Reason.BACKOFF_EXHAUSTED: "see its output: gpupool logs {replica}",
    Reason.REPEATED_FAILURE: "see its output: gpupool logs {replica}; --backoff-limit N tries it again in any case",
    Reason.START_FAILED: "check its command, folder and permissions: gpupool describe {name}",
    Reason.IMAGE_FAILED: "check the name {image} and the access to its registry; see also gpupool image list",
    Reason.ENVIRONMENT_FAILED: "correct the lock file, or set index and proxy with -e UV_... or PIP_...",
    Reason.CLIENT_GONE: "start programs that must outlive the terminal with gpupool submit or run --detach",
    Reason.TIME_LIMIT: "set a longer --max-time",
    Reason.MEMORY_LIMIT: "request more host memory with --memory",
    Reason.IDLE_LIMIT: "set a longer --idle-timeout, or end it when its work is done",
    Reason.EXPIRED: "request a longer lease, or extend it before its end: gpupool extend {name} 1h",
    Reason.WAIT_EXPIRED: "set a longer --wait, or request what is free now: gpupool plan",
    Reason.DEPENDENCY_FAILED: "correct what it depends on, or depend on its end in any case: --after NAME:any",
    Reason.LEASE_ENDED: "take a new lease: gpupool request-gpus",
    Reason.SHEPHERD_LOST: "submit it with --restart on-failure to run it again automatically",
    Reason.NODE_LOST: "submit it with --restart on-failure to run it again automatically",
    Reason.NODE_RESTARTED: "submit it with --restart on-failure to run it again automatically",
    Reason.GANG_INCOMPLETE: "see the member that ended first: gpupool describe {name}",
}
_CONSEQUENCES = frozenset({Reason.GANG_INCOMPLETE, Reason.GANG_DONE, Reason.GANG_RESTART})


def ending_of(workload: Workload, replicas: Sequence[Replica]) -> Ending | None:
    """Return how an ended workload ended, by the replica that decided; None while it is live."""
    if not workload.state.final or not replicas:
        return None
    return replica_ending(workload, deciding_replica(replicas))


def deciding_replica(replicas: Sequence[Replica]) -> Replica:
    """Return the replica whose end explains that of the workload: the first one that failed by itself, if any."""
    for state in (ReplicaState.FAILED, ReplicaState.STOPPED):
        ended = [replica for replica in replicas if replica.state is state]
        if ended:
            return min(ended, key=lambda r: (r.reason in _CONSEQUENCES, r.finished_at or 0.0, r.index))
    return max(replicas, key=lambda r: (r.reason not in _CONSEQUENCES, r.finished_at or 0.0))


def replica_ending(workload: Workload, replica: Replica) -> Ending | None:
    """Return how a replica ended; None while it is live."""
    if not replica.state.final:
        return None
    failed = replica.state is not ReplicaState.SUCCEEDED
    return Ending(
        replica.reason,
        _sentence(workload, replica),
        _decided_by(replica.reason),
        replica.ended_by,
        _remedy(workload, replica) if failed else "",
        replica.exit_status,
        replica.index,
    )


def retrying(workload: Workload, replica: Replica) -> Retrying | None:
    """Return the next attempt of a replica that waits after a failure; None if it does not."""
    if replica.state is not ReplicaState.PENDING or replica.reason is not Reason.RETRY:
        return None
    return Retrying(replica.failures + 1, workload.retry.backoff_limit + 1, replica.not_before)


def _sentence(workload: Workload, replica: Replica) -> str:
    said = replica.message.strip().removesuffix(".") or str(replica.reason).lower().replace("_", " ")
    ran_s = (replica.finished_at or 0.0) - (replica.started_at or 0.0)
    if replica.reason is Reason.EXITED and replica.started_at is not None and ran_s >= 0:
        said += f" after {format_duration(ran_s)}"
    together = workload.stop_reason is replica.reason  # all replicas were stopped, not this one
    return f"replica {replica.index}: {said}" if workload.completions > 1 and not together else said


def _decided_by(reason: Reason) -> DecidedBy:
    if reason in _BY_PROGRAM:
        return DecidedBy.PROGRAM
    if reason in _BY_USER:
        return DecidedBy.USER
    if reason in _BY_NODE:
        return DecidedBy.NODE
    return DecidedBy.CLIENT if reason is Reason.CLIENT_GONE else DecidedBy.POOL


def _remedy(workload: Workload, replica: Replica) -> str:
    container, limit = workload.program.container, workload.limits.memory_mib
    image = "" if container is None else container.image
    name = workload.name
    whose = f"{name}/{replica.index}" if workload.completions > 1 else name
    remedy = _REMEDIES.get(replica.reason, "").format(name=name, replica=whose, image=image)
    if replica.reason is Reason.MEMORY_LIMIT and limit is not None:
        remedy += f" (it had {format_mib(limit)})"
    return remedy
