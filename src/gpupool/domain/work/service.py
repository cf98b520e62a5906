"""Services: long-running servers with a stable address, a number of replicas, and numbered revisions.

A service is the parent of ordinary workloads, one for each replica. Its state follows from its row and from these
workloads, so there is no second record that could disagree after a crash. An update makes a new revision the target:
replicas of the target replace the others, and then the target is the current revision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.labels import APPLIED_LABEL

MAX_REPLICAS = 64
MAX_REVISIONS = 10
MAX_TOKENS = 32
MAX_SERVICE_NAME = 40  # replicas have longer names: chat-r12-3


class ServiceState(StrEnum):
    """The state of a service."""

    STOPPED = "stopped"  # by a user: no replicas, and requests are refused
    IDLE = "idle"  # no replicas: the next request starts one
    STARTING = "starting"  # no replica is ready yet
    UPDATING = "updating"  # replicas of a new revision replace the others
    READY = "ready"
    DEGRADED = "degraded"  # ready, but with fewer replicas than desired


class Access(StrEnum):
    """The users whose requests a service answers."""

    PUBLIC = "public"  # everybody
    MEMBERS = "members"  # all users of the pool
    PROJECT = "project"  # members of its project
    TOKEN = "token"  # noqa: S105 - requests with one of its own tokens


class ProbeKind(StrEnum):
    """The check that shows that a replica is ready."""

    TCP = "tcp"  # the port accepts connections
    HTTP = "http"  # a GET of ``path`` answers with a status from 200 to 399
    COMMAND = "command"  # ``command`` ends with status 0 where the replica runs


@dataclass(frozen=True, slots=True)
class Probe:
    """A check of a replica.

    It runs every ``every_s`` with a limit of ``timeout_s``. A ready replica is not ready after ``failures`` failed
    checks in sequence. A replica that is not ready for ``within_s`` is restarted; an update ends without effect.
    """

    kind: ProbeKind = ProbeKind.TCP
    path: str = ""
    within_s: float = 600.0
    every_s: float = 2.0
    timeout_s: float = 5.0
    failures: int = 3
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScalePolicy:
    """The number of replicas: from ``least`` to ``most``, each for ``concurrency`` requests at a time.

    More demand must last ``up_s``, less demand ``down_s``, until the number changes. The last replica stops after
    ``to_zero_s`` without requests. A replica stays at least ``min_loaded_s`` before another service may replace it.
    """

    least: int = 1
    most: int = 1
    concurrency: int = 8
    up_s: float = 10.0
    down_s: float = 300.0
    to_zero_s: float = 900.0
    min_loaded_s: float = 60.0


@dataclass(frozen=True, slots=True)
class UpdatePolicy:
    """``surge`` more replicas during an update; a replica that leaves gets ``drain_s`` to end its requests."""

    surge: int = 1
    drain_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Routing:
    """The requests that reach a service.

    ``tokens`` are SHA-256 digests of its own tokens. ``held`` requests may wait up to ``hold_s`` until a replica is
    ready.
    """

    access: Access = Access.PROJECT
    models: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    held: int = 100
    hold_s: float = 600.0
    body_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Revision:
    """A version of the program: ``body`` is the request of the service at that time.

    ``port`` 0 is a free port of the node; the program also gets it as the variable ``port_env``.
    """

    number: int
    created_at: float
    created_by: str
    body: dict[str, Any]
    port: int = 0
    port_env: str = "PORT"
    probe: Probe = field(default_factory=Probe)

    def same_program(self, other: Revision) -> bool:
        """Return True if replicas of the other revision would run in the same way."""
        mine, theirs = (_program_of(each.body) for each in (self, other))
        return (mine, self.port, self.port_env, self.probe) == (theirs, other.port, other.port_env, other.probe)


def _program_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a request that decides how replicas run."""
    labels = {key: value for key, value in body.get("labels", {}).items() if key != APPLIED_LABEL}
    return {key: value for key, value in body.items() if key not in {"service", "labels"}} | {"labels": labels}


@dataclass(frozen=True, slots=True)
class Service:
    """A service. ``name`` is unique in its project; ``user`` owns the replicas.

    ``current`` is the revision that serves, ``target`` the one that it is changed to. ``changed_at`` is the time of the
    last change of the target. ``failure`` is the reason why the last update ended without effect.
    """

    id: str
    name: str
    project: str
    user: str
    created_at: float
    revisions: tuple[Revision, ...]
    uid: int | None = None
    scale: ScalePolicy = field(default_factory=ScalePolicy)
    update: UpdatePolicy = field(default_factory=UpdatePolicy)
    routing: Routing = field(default_factory=Routing)
    current: int = 1
    target: int = 1
    stopped: bool = False
    changed_at: float = 0.0
    failure: str = ""

    @property
    def key(self) -> str:
        """Return the name of its route."""
        return f"{self.project}/{self.name}"

    @property
    def updating(self) -> bool:
        """Return True while replicas of another revision replace the present ones."""
        return self.target != self.current

    def revision(self, number: int) -> Revision:
        """Return a revision. Raises ``GpupoolError(NOT_FOUND)``."""
        for each in self.revisions:
            if each.number == number:
                return each
        numbers = ", ".join(str(each.number) for each in self.revisions)
        raise GpupoolError(
            ErrorCode.NOT_FOUND, f"The service {self.name} has no revision {number}.", f"Its revisions: {numbers}."
        )


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica of a service for decisions.

    ``started`` is False while it waits for GPUs. ``served``: it has been ready before, so requests may still use it.
    ``draining_s`` is the time since it left the routing table; None: it is in it. ``requests`` are those that it
    answers now; None: unknown. ``leaving``: its node is drained, so another replica replaces it.
    """

    id: str
    revision: int
    created_at: float
    ready: bool = False
    started: bool = False
    served: bool = False
    protected: bool = True
    draining_s: float | None = None
    requests: int | None = None
    leaving: bool = False


def check_scale(scale: ScalePolicy) -> ScalePolicy:
    """Return the policy; raise ``GpupoolError(INVALID_COUNT)`` if its numbers of replicas contradict each other."""
    if 0 <= scale.least <= scale.most <= MAX_REPLICAS and scale.most >= 1:
        return scale
    raise GpupoolError(
        ErrorCode.INVALID_COUNT,
        f"A service cannot have {scale.least} to {scale.most} replicas.",
        f"Give a number from 1 to {MAX_REPLICAS}, or a range such as 0..4; `gpupool service stop` stops all replicas.",
    )


def with_revision(service: Service, revision: Revision) -> Service:
    """Return the service with a new revision as its target; the oldest revisions are forgotten."""
    number = 1 + max(each.number for each in service.revisions)
    kept = {service.current, service.target}
    others = [each for each in service.revisions if each.number not in kept][-(MAX_REVISIONS - 3) :]
    rows = [*others, *(each for each in service.revisions if each.number in kept), replace(revision, number=number)]
    rows.sort(key=lambda each: each.number)
    return retarget(replace(service, revisions=tuple(rows)), number, revision.created_at)


def retarget(service: Service, number: int, now: float) -> Service:
    """Return the service that changes to a revision which it has."""
    return replace(service, target=service.revision(number).number, changed_at=now, failure="", stopped=False)


def promote(service: Service) -> Service:
    """Return the service whose change to its target is complete."""
    return replace(service, current=service.target)


def give_up(service: Service, reason: str, now: float) -> Service:
    """Return the service that stays with its current revision, because the target cannot serve."""
    failure = f"Revision {service.target} was not used: {reason}"
    return replace(service, target=service.current, failure=failure, changed_at=now)


def previous(service: Service) -> int:
    """Return the revision to which ``undo`` changes. Raises ``GpupoolError(WRONG_STATE)`` if there is none."""
    if service.updating:
        return service.current
    older = [each.number for each in service.revisions if each.number < service.current]
    if not older:
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            f"The service {service.name} has no revision before {service.current}.",
            f"See `gpupool service describe {service.name}`.",
        )
    return older[-1]


def state_of(service: Service, desired: int, replicas: Sequence[ReplicaStatus]) -> ServiceState:
    """Return the state of a service."""
    ready = sum(each.ready and each.draining_s is None for each in replicas)
    if service.stopped:
        return ServiceState.STOPPED
    if service.updating:
        return ServiceState.UPDATING
    if not ready:
        return ServiceState.IDLE if desired == 0 else ServiceState.STARTING
    return ServiceState.READY if ready >= desired else ServiceState.DEGRADED
