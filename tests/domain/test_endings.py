"""The record of an end: the replica that decides, what the record says, and failures that are not repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from domain_values import ID, replica, report, workload

from gpupool.domain.events import Reason
from gpupool.domain.ids import Epoch
from gpupool.domain.work import lifecycle
from gpupool.domain.work.ending import DecidedBy, ending_of, replica_ending, retrying
from gpupool.domain.work.program.supervision import ExitReason
from gpupool.domain.work.workload import (
    Limits,
    Replica,
    ReplicaState,
    RestartPolicy,
    Retry,
    WorkloadState,
)

SIX = Retry(RestartPolicy.ON_FAILURE, 6, 3)
ALL_CODES = [reason for reason in Reason if reason in lifecycle._ENDS_AS_FAILURE]


def ended(index: int, state: ReplicaState, reason: Reason, at: float) -> Replica:
    return Replica(ID, index, state, reason=reason, message=f"end {index}", started_at=1.0, finished_at=at)


@pytest.mark.parametrize(
    ("rows", "index"),
    [
        ([(ReplicaState.FAILED, Reason.EXITED, 9.0), (ReplicaState.FAILED, Reason.EXITED, 5.0)], 1),
        ([(ReplicaState.STOPPED, Reason.STOPPED_BY_USER, 1.0), (ReplicaState.FAILED, Reason.EXITED, 5.0)], 1),
        ([(ReplicaState.FAILED, Reason.GANG_INCOMPLETE, 1.0), (ReplicaState.FAILED, Reason.EXITED, 5.0)], 1),
        ([(ReplicaState.SUCCEEDED, Reason.EXITED, 9.0), (ReplicaState.STOPPED, Reason.IDLE_LIMIT, 5.0)], 1),
        ([(ReplicaState.SUCCEEDED, Reason.EXITED, 9.0), (ReplicaState.SUCCEEDED, Reason.EXITED, 5.0)], 0),
        ([(ReplicaState.SUCCEEDED, Reason.EXITED, 5.0), (ReplicaState.SUCCEEDED, Reason.GANG_DONE, 9.0)], 0),
    ],
)
def test_first_replica_that_failed_by_itself_decides(
    rows: list[tuple[ReplicaState, Reason, float]], index: int
) -> None:
    work = workload(completions=2, state=WorkloadState.FAILED)
    found = ending_of(work, [ended(number, *row) for number, row in enumerate(rows)])
    assert found is not None
    assert found.index == index
    assert found.sentence.startswith(f"replica {index}: end {index}")


def test_stop_of_the_whole_workload_names_no_replica() -> None:
    rows = [ended(index, ReplicaState.STOPPED, Reason.STOPPED_BY_USER, 2.0) for index in range(2)]
    work = workload(completions=2, state=WorkloadState.STOPPED)
    whole = ending_of(replace(work, stop_reason=Reason.STOPPED_BY_USER), rows)
    single = ending_of(work, rows)
    assert whole is not None
    assert single is not None
    assert (whole.sentence, single.sentence) == ("end 0", "replica 0: end 0")


@pytest.mark.parametrize(("completions", "named"), [(1, "{name}"), (4, "{name}/3")])
@pytest.mark.parametrize("reason", [Reason.EXITED, Reason.BACKOFF_EXHAUSTED, Reason.REPEATED_FAILURE])
def test_suggestion_names_the_replica_that_failed(reason: Reason, completions: int, named: str) -> None:
    work = workload(completions=completions, state=WorkloadState.FAILED)
    found = ending_of(work, [ended(completions - 1, ReplicaState.FAILED, reason, 2.0)])
    assert found is not None
    assert found.remedy.partition(";")[0] == f"see its output: gpupool logs {named.format(name=work.name)}"


def test_live_work_has_no_ending() -> None:
    assert ending_of(workload(), [replica(ReplicaState.RUNNING)]) is None
    assert replica_ending(workload(), replica(ReplicaState.PENDING)) is None


@pytest.mark.parametrize("reason", ALL_CODES)
def test_each_failure_has_a_remedy(reason: Reason) -> None:
    found = replica_ending(workload(limits=Limits(memory_mib=2048)), ended(0, ReplicaState.FAILED, reason, 2.0))
    assert found is not None
    assert found.remedy
    assert "{" not in found.remedy


def test_user_who_stopped_it_is_recorded_until_the_next_start() -> None:
    work = workload()
    stopping = lifecycle.stop(work, replica(ReplicaState.RUNNING), Reason.STOPPED_BY_USER, 5.0, None, "by ann", "ann")
    done = lifecycle.end_attempt(work, stopping.replica, report(ExitReason.STOPPED, None, 15), 6.0).replica
    found = replica_ending(work, done)
    assert found is not None
    assert (found.user, found.decided_by, found.sentence) == ("ann", DecidedBy.USER, "by ann")
    again = lifecycle.grant_lease(work, replace(done, state=ReplicaState.PENDING), Epoch(9), "here", 8.0)
    assert again.replica.ended_by == ""


def fail(work_retry: Retry, ends: list[tuple[int, float]]) -> Replica:
    """Let a program fail with these statuses after these times, until it is not tried again."""
    work, row, now = workload(retry=work_retry), replica(), 0.0
    for status, ran_s in ends:
        assert row.state is ReplicaState.PENDING
        row = replace(
            lifecycle.grant_lease(work, row, Epoch(1), "here", now).replica,
            state=ReplicaState.RUNNING,
            started_at=now,
        )
        now += ran_s
        row = lifecycle.end_attempt(work, row, replace(report(code=status), finished_at=now), now).replica
    return row


@pytest.mark.parametrize(
    ("retry", "ends", "reason"),
    [
        (SIX, [(4, 0.1)] * 3, Reason.REPEATED_FAILURE),
        (SIX, [(4, 0.1)] * 2, Reason.RETRY),
        (SIX, [(4, 0.1), (5, 0.1), (4, 0.1), (4, 0.1)], Reason.RETRY),
        (SIX, [(4, 0.1), (4, 60.0), (4, 0.1), (4, 0.1)], Reason.RETRY),
        (SIX, [(4, 60.0)] * 6, Reason.RETRY),
        (SIX, [(4, 60.0)] * 7, Reason.BACKOFF_EXHAUSTED),
        (replace(SIX, same_limit=0), [(4, 0.1)] * 7, Reason.BACKOFF_EXHAUSTED),
        (replace(SIX, same_limit=0), [(4, 0.1)] * 6, Reason.RETRY),
    ],
)
def test_program_that_fails_immediately_in_the_same_way_is_not_repeated(
    retry: Retry, ends: list[tuple[int, float]], reason: Reason
) -> None:
    assert fail(retry, ends).reason is reason


def test_next_attempt_is_counted_with_the_first_one() -> None:
    found = retrying(workload(retry=SIX), fail(SIX, [(4, 0.1), (4, 0.1)]))
    assert found is not None
    assert (found.attempt, found.attempts) == (3, 7)
    assert found.next_at == pytest.approx(0.2 + lifecycle.retry_delay_s(2))
