"""Kinds of workloads, and states of workloads and replicas."""

from __future__ import annotations

from enum import StrEnum


class WorkloadKind(StrEnum):
    """The purpose of a workload; it decides protection and the effect of a client's end."""

    RUN = "run"  # `run`: one program, usually bound to the terminal that started it
    TRAINING = "training"  # `submit`: batch, may exceed the quota, may be preempted and queued again
    INTERACTIVE = "interactive"  # `submit --interactive`: protected within quota
    LEASE = "lease"  # `request_gpus`: GPUs without a program
    SERVICE = "service"  # `serve`: a replica of a service, protected within quota up to its minimum
    EXEC = "exec"  # `client`, `exec`, `shell`: a program on the GPUs of another workload


class WorkloadState(StrEnum):
    """The state of a workload as a whole."""

    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def final(self) -> bool:
        """Return whether the state is final."""
        return self in {WorkloadState.SUCCEEDED, WorkloadState.FAILED, WorkloadState.STOPPED}


class ReplicaState(StrEnum):
    """The state of one replica."""

    PENDING = "pending"  # waits: in the queue, for a dependency, a back-off or its parallelism
    STARTING = "starting"  # holds a lease; the node was asked to start it
    RUNNING = "running"
    STOPPING = "stopping"  # was asked to end; still holds its lease
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def final(self) -> bool:
        """Return whether it has ended for good."""
        return self in {ReplicaState.SUCCEEDED, ReplicaState.FAILED, ReplicaState.STOPPED}

    @property
    def placed(self) -> bool:
        """Return whether it holds (or uses) GPUs now."""
        return self in {ReplicaState.STARTING, ReplicaState.RUNNING, ReplicaState.STOPPING}
