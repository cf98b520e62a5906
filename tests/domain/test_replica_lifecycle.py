"""The state machine of a replica: tables of steps, and invariants after any history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from domain_values import FOREVER, NEVER, TWICE, replica, report, workload
from hypothesis import given
from hypothesis import strategies as st

from gpupool.domain.events import Reason
from gpupool.domain.ids import Epoch
from gpupool.domain.work import lifecycle
from gpupool.domain.work.lifecycle import ForgetProgram, StartProgram, StopProgram, Transition
from gpupool.domain.work.program.supervision import ExitReason, ProcessPhase, ProcessStatus
from gpupool.domain.work.workload import (
    Limits,
    OnPreempt,
    Replica,
    ReplicaState,
    RestartPolicy,
    Retry,
    Workload,
    WorkloadKind,
    WorkloadState,
)

P, S, R, X = ReplicaState.PENDING, ReplicaState.STARTING, ReplicaState.RUNNING, ReplicaState.STOPPING
OK, BAD, END = ReplicaState.SUCCEEDED, ReplicaState.FAILED, ReplicaState.STOPPED
EVERY_STATE = tuple(ReplicaState)
FINAL = (OK, BAD, END)
NOW = 100.0


def running(*notes: str) -> ProcessStatus:
    """Return the status of a running program, as its node reports it."""
    mode = "share"
    return ProcessStatus("", 1, ProcessPhase.RUNNING, 99, notes=notes, mode=mode, guarantee=f"kept by {mode}")


def names(step: Transition) -> tuple[str, ...]:
    return tuple(type(effect).__name__ for effect in step.effects)


# --- one step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "before", "after", "effects"),
    [
        (WorkloadKind.TRAINING, P, S, ("StartProgram",)),
        (WorkloadKind.EXEC, P, S, ("StartProgram",)),
        (WorkloadKind.LEASE, P, R, ()),
        *[(WorkloadKind.TRAINING, state, state, ()) for state in EVERY_STATE if state is not P],
    ],
)
def test_granted_replica_is_starting(
    kind: WorkloadKind, before: ReplicaState, after: ReplicaState, effects: tuple[str, ...]
) -> None:
    row = replica(before)
    step = lifecycle.grant_lease(workload(kind), row, Epoch(9), "there", NOW)
    assert (step.replica.state, names(step)) == (after, effects)
    if before is P:
        assert (step.replica.lease, step.replica.node, step.replica.attempt) == (9, "there", row.attempt + 1)
    else:
        assert step == Transition(row)


@pytest.mark.parametrize(("state", "heard"), [(R, True), (X, True), (P, False), (S, False), (OK, False), (BAD, False)])
def test_later_reports_of_node_are_added_with_events(state: ReplicaState, *, heard: bool) -> None:
    row = replace(replica(state), notes=("at the start", "by the pool"))
    step = lifecycle.add_notes(row, running("at the start", "later", "at last"), NOW)
    if not heard:
        assert step == Transition(row)
        return
    assert step.replica == replace(row, notes=("at the start", "by the pool", "later", "at last"))
    assert [(event.reason, event.message) for event in step.events] == [
        (Reason.NODE_WARNING, "later"),
        (Reason.NODE_WARNING, "at last"),
    ]
    assert lifecycle.add_notes(step.replica, running("at the start", "later", "at last"), NOW) == Transition(
        step.replica
    )


@pytest.mark.parametrize(("before", "after"), [(S, R), (X, X), (P, P), (R, R), (OK, OK), (BAD, BAD), (END, END)])
def test_started_replica_is_running(before: ReplicaState, after: ReplicaState) -> None:
    step = lifecycle.mark_started(replica(before), running("no cgroup"), NOW)
    assert step.replica.state is after
    assert step.effects == ()
    heard = before in {S, X}
    assert (step.replica.pid == 99) is heard
    assert step.replica.sharing == ("share" if heard else "")
    assert step.replica.notes == (("no cgroup",) if heard else replica(before).notes)
    assert len(step.events) == (before is S)


EXITS = [
    # retry, before, next reason, how it ended, code -> state, reason, failures, interruptions
    (NEVER, R, None, ExitReason.EXITED, 0, OK, Reason.EXITED, 0, 0),
    (NEVER, S, None, ExitReason.EXITED, 0, OK, Reason.EXITED, 0, 0),
    (NEVER, R, None, ExitReason.EXITED, 3, BAD, Reason.EXITED, 1, 0),
    (NEVER, R, None, ExitReason.START_FAILED, None, BAD, Reason.START_FAILED, 0, 0),
    (NEVER, R, None, ExitReason.TIME_LIMIT, None, BAD, Reason.TIME_LIMIT, 0, 0),
    (NEVER, R, None, ExitReason.CLIENT_GONE, None, END, Reason.CLIENT_GONE, 0, 0),
    (NEVER, R, None, ExitReason.STOPPED, None, END, Reason.STOPPED_BY_USER, 0, 0),
    (NEVER, R, None, ExitReason.SHEPHERD_LOST, None, BAD, Reason.SHEPHERD_LOST, 0, 0),
    (NEVER, R, None, ExitReason.NODE_RESTARTED, None, BAD, Reason.NODE_RESTARTED, 0, 0),
    (TWICE, R, None, ExitReason.EXITED, 0, OK, Reason.EXITED, 0, 0),
    (TWICE, R, None, ExitReason.EXITED, 3, P, Reason.RETRY, 1, 0),
    (TWICE, R, None, ExitReason.SHEPHERD_LOST, None, P, Reason.SHEPHERD_LOST, 0, 1),
    (TWICE, R, None, ExitReason.NODE_RESTARTED, None, P, Reason.NODE_RESTARTED, 0, 1),
    (TWICE, R, None, ExitReason.TIME_LIMIT, None, BAD, Reason.TIME_LIMIT, 0, 0),
    (TWICE, R, None, ExitReason.START_FAILED, None, BAD, Reason.START_FAILED, 0, 0),
    (FOREVER, R, None, ExitReason.EXITED, 0, P, Reason.RETRY, 0, 0),
    (FOREVER, R, None, ExitReason.EXITED, 3, P, Reason.RETRY, 1, 0),
    (TWICE, X, Reason.STOPPED_BY_USER, ExitReason.STOPPED, None, END, Reason.STOPPED_BY_USER, 0, 0),
    (TWICE, X, Reason.STOPPED_BY_USER, ExitReason.EXITED, 0, OK, Reason.EXITED, 0, 0),
    (TWICE, X, Reason.STOPPED_BY_USER, ExitReason.EXITED, 3, END, Reason.STOPPED_BY_USER, 0, 0),
    (NEVER, X, Reason.LEASE_ENDED, ExitReason.EXITED, 3, BAD, Reason.EXITED, 1, 0),
    (TWICE, X, Reason.PREEMPTED, ExitReason.EXITED, 0, OK, Reason.EXITED, 0, 0),
    (TWICE, X, Reason.SUSPENDED_BY_USER, ExitReason.EXITED, 0, OK, Reason.EXITED, 0, 0),
    (FOREVER, X, Reason.STOPPED_BY_USER, ExitReason.EXITED, 0, END, Reason.STOPPED_BY_USER, 0, 0),
    (TWICE, X, Reason.SUSPENDED_BY_USER, ExitReason.STOPPED, None, P, Reason.SUSPENDED_BY_USER, 0, 0),
    (TWICE, X, Reason.PREEMPTED, ExitReason.STOPPED, None, P, Reason.PREEMPTED, 0, 1),
    (TWICE, X, Reason.PREEMPTED, ExitReason.TIME_LIMIT, None, BAD, Reason.TIME_LIMIT, 0, 0),
    (TWICE, X, Reason.IDLE_LIMIT, ExitReason.STOPPED, None, END, Reason.IDLE_LIMIT, 0, 0),
    (TWICE, X, Reason.LEASE_ENDED, ExitReason.SHEPHERD_LOST, None, END, Reason.LEASE_ENDED, 0, 0),
    (NEVER, X, Reason.RESTARTED_BY_USER, ExitReason.STOPPED, None, P, Reason.RESTARTED_BY_USER, 0, 0),
    (NEVER, X, Reason.RESTARTED_BY_USER, ExitReason.EXITED, 3, P, Reason.RESTARTED_BY_USER, 0, 0),
    (NEVER, X, Reason.RESTARTED_BY_USER, ExitReason.SHEPHERD_LOST, None, P, Reason.RESTARTED_BY_USER, 0, 0),
    (NEVER, X, Reason.RESTARTED_BY_USER, ExitReason.TIME_LIMIT, None, BAD, Reason.TIME_LIMIT, 0, 0),
    (NEVER, X, Reason.RESTARTED_BY_USER, ExitReason.FENCED, None, BAD, Reason.NODE_LOST, 0, 0),
    (TWICE, X, Reason.RESTARTED_BY_USER, ExitReason.NODE_RESTARTED, None, P, Reason.NODE_RESTARTED, 0, 1),
]


@pytest.mark.parametrize("row", EXITS, ids=lambda row: f"{row[0].policy}-{row[1]}-{row[2]}-{row[3]}-{row[4]}")
def test_exit_status_decides_the_final_state(row: tuple[Any, ...]) -> None:
    retry, before, next_reason, how, code, state, reason, failures, interruptions = row
    step = lifecycle.end_attempt(workload(retry=retry), replica(before, next_reason), report(how, code), NOW)
    after = step.replica
    assert (after.state, after.reason) == (state, reason)
    assert (after.failures, after.interruptions) == (failures, interruptions)
    assert (after.lease, after.pid, after.next_reason) == (None, None, None)
    assert names(step) == ("ForgetProgram",)
    assert [event.reason for event in step.events] == [reason]


@pytest.mark.parametrize(("reported", "recorded"), [(60.0, 60.0), (NOW + 3600, NOW), (1.0, 2.0)])
def test_end_is_between_the_start_and_now(reported: float, recorded: float) -> None:
    end = replace(report(), finished_at=reported)
    assert lifecycle.end_attempt(workload(), replica(R), end, NOW).replica.finished_at == recorded


def test_start_is_not_in_the_future() -> None:
    status = replace(running(), started_at=NOW + 3600)
    assert lifecycle.mark_started(replica(ReplicaState.STARTING), status, NOW).replica.started_at == NOW


@pytest.mark.parametrize("state", [P, *FINAL])
def test_end_of_unplaced_replica_is_stale(state: ReplicaState) -> None:
    row = replica(state)
    assert lifecycle.end_attempt(workload(), row, report(), NOW) == Transition(row)


def test_signal_is_a_failure_with_shell_status() -> None:
    after = lifecycle.end_attempt(workload(), replica(R), report(code=None, signal=9), NOW).replica
    assert (after.state, after.exit_status, after.message) == (BAD, 137, "killed by signal 9 (SIGKILL)")


def test_memory_limit_is_a_reason_of_its_own() -> None:
    killed = replace(report(code=None, signal=9), message="Killed: it exceeded its limit.", memory_limited=True)
    after = lifecycle.end_attempt(workload(), replica(R), killed, NOW).replica
    assert (after.state, after.reason, after.message) == (BAD, Reason.MEMORY_LIMIT, "Killed: it exceeded its limit.")
    retried = lifecycle.end_attempt(workload(retry=TWICE), replica(R), killed, NOW).replica
    assert (retried.state, retried.reason) == (P, Reason.RETRY)


@pytest.mark.parametrize(("kind", "bound"), [(WorkloadKind.EXEC, False), (WorkloadKind.RUN, True)])
def test_replica_bound_to_client_or_host_is_not_retried_when_lost(kind: WorkloadKind, bound: bool) -> None:
    lost = lifecycle.end_attempt(
        workload(kind, TWICE, client_bound=bound), replica(R), report(ExitReason.SHEPHERD_LOST, None), NOW
    )
    assert lost.replica.state is BAD


def test_repeatedly_lost_replica_fails() -> None:
    row = replica(R, interruptions=lifecycle.MAX_INTERRUPTIONS)
    after = lifecycle.end_attempt(workload(retry=TWICE), row, report(ExitReason.SHEPHERD_LOST, None), NOW).replica
    assert after.state is BAD


def test_replica_fails_after_back_off_limit_with_message() -> None:
    job, row, delays = workload(retry=TWICE), replica(P), []
    for _ in range(10):
        row = lifecycle.grant_lease(job, row, Epoch(1), "here", NOW).replica
        row = lifecycle.end_attempt(job, row, report(code=1), NOW).replica
        if row.state is not P:
            break
        delays.append(row.not_before - NOW)
    assert (row.state, row.attempt, row.failures, row.reason) == (BAD, 3, 3, Reason.BACKOFF_EXHAUSTED)
    assert delays == [2.0, 4.0]
    assert "retries are used" in row.message


def test_delays_double_up_to_five_minutes() -> None:
    assert [lifecycle.retry_delay_s(n) for n in (1, 2, 3, 8, 9, 1000)] == [2, 4, 8, 256, 300, 300]


def test_losses_do_not_count_against_the_back_off_limit() -> None:
    job, row = workload(retry=Retry(RestartPolicy.ON_FAILURE, 0)), replica(P)
    for _ in range(5):
        row = lifecycle.grant_lease(job, row, Epoch(1), "here", NOW).replica
        row = lifecycle.end_attempt(job, row, report(ExitReason.SHEPHERD_LOST, None), NOW).replica
    assert (row.state, row.failures, row.interruptions, row.not_before) == (P, 0, 5, NOW)


STOPS = [
    # before, next reason, asked -> state, next reason, effects
    (P, None, Reason.STOPPED_BY_USER, END, None, ()),
    (P, None, Reason.WAIT_EXPIRED, BAD, None, ()),
    (P, None, Reason.DEPENDENCY_FAILED, BAD, None, ()),
    (P, None, Reason.SUSPENDED_BY_USER, P, None, ()),
    (P, None, Reason.PREEMPTED, P, None, ()),
    (S, None, Reason.STOPPED_BY_USER, X, Reason.STOPPED_BY_USER, ("StopProgram",)),
    (R, None, Reason.PREEMPTED, X, Reason.PREEMPTED, ("StopProgram",)),
    (X, Reason.PREEMPTED, Reason.STOPPED_BY_USER, X, Reason.STOPPED_BY_USER, ("StopProgram",)),
    (X, Reason.STOPPED_BY_USER, Reason.PREEMPTED, X, Reason.STOPPED_BY_USER, ("StopProgram",)),
    (X, Reason.RESTARTED_BY_USER, Reason.PREEMPTED, X, Reason.PREEMPTED, ("StopProgram",)),
    (X, Reason.RESTARTED_BY_USER, Reason.STOPPED_BY_USER, X, Reason.STOPPED_BY_USER, ("StopProgram",)),
    (X, Reason.STOPPED_BY_USER, Reason.EXPIRED, X, Reason.STOPPED_BY_USER, ("StopProgram",)),
    *[(state, None, Reason.STOPPED_BY_USER, state, None, ()) for state in FINAL],
]


@pytest.mark.parametrize("row", STOPS, ids=lambda row: f"{row[0]}-{row[1]}-{row[2]}")
def test_stop_depends_on_the_state(row: tuple[Any, ...]) -> None:
    before, next_before, asked, state, next_after, effects = row
    step = lifecycle.stop(workload(), replica(before, next_before), asked, NOW)
    assert (step.replica.state, step.replica.next_reason, names(step)) == (state, next_after, effects)


@pytest.mark.parametrize(
    ("sentence", "event"),
    [
        ("", "asked to stop with 10 s of grace"),
        ("its window has closed", "its window has closed; asked to stop with 10 s of grace"),
        ("Preempted for ada.", "Preempted for ada; asked to stop with 10 s of grace"),
    ],
)
def test_event_of_stop_has_one_punctuation_mark_after_reason(sentence: str, event: str) -> None:
    step = lifecycle.stop(workload(), replica(R), Reason.PREEMPTED, NOW, 10.0, sentence)
    assert [each.message for each in step.events] == [event]
    assert step.replica.message == sentence


@pytest.mark.parametrize(
    ("before", "next_reason", "restarts"),
    [
        (S, None, True),
        (R, None, True),
        (X, Reason.RESTARTED_BY_USER, True),
        (X, Reason.PREEMPTED, False),
        (X, Reason.STOPPED_BY_USER, False),
        *[(state, None, False) for state in (P, *FINAL)],
    ],
)
def test_only_placed_replica_without_other_stop_restarts(
    before: ReplicaState, next_reason: Reason | None, restarts: bool
) -> None:
    row = replica(before, next_reason)
    step = lifecycle.restart(workload(), row, NOW, 0.0, "restarted by ann")
    assert lifecycle.keeps_place(step.replica) is restarts
    assert restarts or step == Transition(row)


def test_stop_uses_requested_or_default_grace_period() -> None:
    own = lifecycle.stop(workload(), replica(R), Reason.STOPPED_BY_USER, NOW)
    shorter = lifecycle.stop(workload(), own.replica, Reason.STOPPED_BY_USER, NOW, 0.0)
    assert [
        effect.grace_s for step in (own, shorter) for effect in step.effects if isinstance(effect, StopProgram)
    ] == [
        10.0,
        0.0,
    ]


@pytest.mark.parametrize(
    ("reason", "state"),
    [(Reason.RELEASED, OK), (Reason.EXPIRED, END), (Reason.IDLE_LIMIT, END), (Reason.TIME_LIMIT, BAD)],
)
def test_lease_without_program_ends_when_nothing_runs_on_it(reason: Reason, state: ReplicaState) -> None:
    after = lifecycle.end_lease(workload(WorkloadKind.LEASE), replica(X, reason), NOW).replica
    assert (after.state, after.reason, after.lease) == (state, reason, None)


@pytest.mark.parametrize("kind", [k for k in WorkloadKind if k is not WorkloadKind.LEASE])
def test_only_leases_without_program_are_released(kind: WorkloadKind) -> None:
    row = replica(X, Reason.RELEASED)
    assert lifecycle.end_lease(workload(kind), row, NOW) == Transition(row)


@pytest.mark.parametrize(
    ("counts", "changes", "state"),
    [
        ({P: 1}, {}, WorkloadState.QUEUED),
        ({P: 1}, {"suspended": True}, WorkloadState.SUSPENDED),
        ({P: 1, R: 1}, {"suspended": True}, WorkloadState.RUNNING),
        ({P: 1, X: 1}, {"suspended": True}, WorkloadState.STOPPING),
        ({X: 1, OK: 1}, {}, WorkloadState.RUNNING),
        ({X: 1}, {"stop_reason": Reason.STOPPED_BY_USER}, WorkloadState.STOPPING),
        ({P: 1, BAD: 2}, {}, WorkloadState.QUEUED),
        ({OK: 2, BAD: 1, END: 1}, {}, WorkloadState.FAILED),
        ({OK: 2, END: 1}, {}, WorkloadState.STOPPED),
        ({OK: 2}, {}, WorkloadState.SUCCEEDED),
    ],
)
def test_workload_state_follows_its_replicas(
    counts: dict[ReplicaState, int], changes: dict[str, Any], state: WorkloadState
) -> None:
    assert lifecycle.workload_state(workload(**changes), counts) is state


# --- any history ------------------------------------------------------------------------------------------------------

RETRIES = st.builds(Retry, st.sampled_from(RestartPolicy), st.integers(0, 3))
WORKLOADS = st.builds(workload, st.sampled_from(WorkloadKind), RETRIES, client_bound=st.booleans())
REPORTS = st.builds(report, st.sampled_from(ExitReason), st.none() | st.integers(0, 255), st.none() | st.just(9))
STOP_REASONS = st.sampled_from(
    [
        Reason.STOPPED_BY_USER,
        Reason.SUSPENDED_BY_USER,
        Reason.PREEMPTED,
        Reason.EXPIRED,
        Reason.RELEASED,
        Reason.IDLE_LIMIT,
        Reason.WAIT_EXPIRED,
        Reason.LEASE_ENDED,
    ]
)
RESTARTS = st.tuples(st.just("restart"), st.none() | st.floats(0, 60))
OCCURRENCES = st.one_of(
    st.just(("granted",)),
    st.just(("started",)),
    st.just(("released",)),
    st.tuples(st.just("ended"), REPORTS),
    st.tuples(st.just("stop"), STOP_REASONS, st.none() | st.floats(0, 60)),
    RESTARTS,
)


def happen(job: Workload, row: Replica, occurrence: tuple[Any, ...], now: float) -> Transition:
    match occurrence:
        case ("granted",):
            return lifecycle.grant_lease(job, row, Epoch(int(now)), "here", now)
        case ("started",):
            return lifecycle.mark_started(row, running(), now)
        case ("released",):
            return lifecycle.end_lease(job, row, now)
        case ("ended", how):
            return lifecycle.end_attempt(job, row, how, now)
        case ("restart", grace):
            return lifecycle.restart(job, row, now, grace, "restarted by ann")
        case (_, reason, grace):
            return lifecycle.stop(job, row, reason, now, grace)


@given(WORKLOADS, st.lists(OCCURRENCES, max_size=30))
def test_every_step_keeps_invariants(job: Workload, history: list[tuple[Any, ...]]) -> None:
    row = replica(P)
    for now, occurrence in enumerate(history, 1000):
        step = happen(job, row, occurrence, float(now))
        after = step.replica
        if row.state.final:
            assert step == Transition(row), "nothing leaves a final state"
        assert (after.lease is not None) is after.state.placed, "a lease exactly while placed"
        assert after.next_reason is None or after.state is X
        assert after.state is not X or after.next_reason is not None
        assert after.attempt - row.attempt == (row.state is P and after.state.placed)
        counted = after.failures - row.failures + after.interruptions - row.interruptions
        assert counted in {0, 1}
        assert counted == 0 or not after.state.placed, "counted when an attempt ends"
        assert after == row or after.state is row.state or step.events, "every change of state is an event"
        starts = [e for e in step.effects if isinstance(e, StartProgram)]
        assert all(e.replica.lease is not None for e in starts)
        assert not any(isinstance(e, ForgetProgram) for e in step.effects) or row.state.placed
        assert (after.finished_at is not None) or not after.state.final
        row = after


@given(WORKLOADS, st.lists(OCCURRENCES, max_size=20), REPORTS)
def test_every_transition_from_stopping_ends_the_attempt(
    job: Workload, history: list[tuple[Any, ...]], how: ExitReason
) -> None:
    row = replica(X, Reason.STOPPED_BY_USER)
    for now, occurrence in enumerate(history, 1000):
        after = happen(job, row, occurrence, float(now)).replica
        assert after.state is X or after.state.final or after.state is P
        if after.state is not X:
            return
        row = after
    assert lifecycle.end_attempt(job, row, how, 2000.0).replica.lease is None  # type: ignore[arg-type]


@given(WORKLOADS, st.lists(OCCURRENCES, max_size=20), OCCURRENCES)
def test_repeated_message_does_nothing(job: Workload, history: list[tuple[Any, ...]], last: tuple[Any, ...]) -> None:
    row = replica(P)
    for now, occurrence in enumerate(history, 1000):
        row = happen(job, row, occurrence, float(now)).replica
    once = happen(job, row, last, 5000.0).replica
    assert happen(job, once, last, 5000.0).replica == once


@given(st.lists(REPORTS, max_size=20), RETRIES)
def test_stopped_workload_never_runs_again(reports: list[Any], retry: Retry) -> None:
    job = replace(workload(retry=retry), stop_reason=Reason.STOPPED_BY_USER)
    for how in reports:
        for before in (replica(S), replica(R), replica(X, Reason.PREEMPTED), replica(X, Reason.STOPPED_BY_USER)):
            assert lifecycle.end_attempt(job, before, how, NOW).replica.state.final


@pytest.mark.parametrize(
    ("on_preempt", "reason", "grace_s", "stop_s"),
    [
        (OnPreempt.SIGNAL, Reason.PREEMPTED, None, 10.0),
        (OnPreempt.KILL, Reason.PREEMPTED, None, 0.0),
        (OnPreempt.KILL, Reason.WINDOW_CLOSED, None, 0.0),
        (OnPreempt.KILL, Reason.STOPPED_BY_USER, None, 10.0),
        (OnPreempt.KILL, Reason.SUSPENDED_BY_USER, None, 10.0),
        (OnPreempt.KILL, Reason.TIME_LIMIT, None, 10.0),
        (OnPreempt.KILL, Reason.PREEMPTED, 3.0, 3.0),
    ],
)
def test_preemption_kills_at_once_if_the_workload_says_so(
    on_preempt: OnPreempt, reason: Reason, grace_s: float | None, stop_s: float
) -> None:
    job = replace(workload(), limits=replace(workload().limits, on_preempt=on_preempt))
    step = lifecycle.stop(job, replica(R), reason, NOW, grace_s)
    assert [effect.grace_s for effect in step.effects if isinstance(effect, StopProgram)] == [stop_s]


# --- lazy GPUs --------------------------------------------------------------------------------------------------------

LAZY = replace(workload(WorkloadKind.INTERACTIVE), limits=Limits(lazy=True))


@pytest.mark.parametrize("state", EVERY_STATE)
def test_lazy_replica_waits_and_gets_gpus_only_while_it_runs(state: ReplicaState) -> None:
    wanted = lifecycle.want_gpus(LAZY, replica(state), NOW)
    assert (wanted.replica.gpu_wanted_at, len(wanted.events)) == ((NOW, 1) if state is R else (None, 0))
    assert not lifecycle.want_gpus(LAZY, wanted.replica, NOW + 1).events, "asked once"
    got = lifecycle.grant_gpus(LAZY, wanted.replica, Epoch(7), NOW + 3)
    assert names(got) == (("AttachGpus",) if state is R else ())
    assert got.replica.gpu_lease == (7 if state is R else None)
    assert lifecycle.grant_gpus(LAZY, got.replica, Epoch(8), NOW + 3).replica == got.replica, "granted once"


def test_lazy_replica_returns_the_gpus_of_its_present_lease_only() -> None:
    held = replace(replica(R), gpu_wanted_at=NOW, gpu_lease=Epoch(7))
    assert lifecycle.return_gpus(held, 6, "", NOW).replica == held
    back = lifecycle.return_gpus(held, 7, "", NOW)
    assert (back.replica.state, back.replica.gpu_lease, back.replica.gpu_wanted_at) == (R, None, None)
    assert [event.reason for event in back.events] == [Reason.GPUS_RETURNED]
    assert lifecycle.return_gpus(back.replica, 7, "", NOW).replica == back.replica


SUSPENDABLE = replace(LAZY, limits=Limits(on_preempt=OnPreempt.SUSPEND))


def test_suspended_replica_waits_for_its_own_gpu_and_loses_nothing() -> None:
    started = lifecycle.grant_lease(SUSPENDABLE, replica(P), Epoch(6), "here", NOW, Epoch(7)).replica
    held = replace(started, state=R, started_at=NOW)
    assert held.leases == {Epoch(6), Epoch(7)}
    asked = lifecycle.suspend(SUSPENDABLE, held, "others need it", NOW + 60)
    assert asked.effects == (lifecycle.SuspendProgram(asked.replica, 10.0),)
    assert lifecycle.suspend(SUSPENDABLE, asked.replica, "again", NOW + 61).effects == ()
    away = lifecycle.return_gpus(asked.replica, 7, "GPU-1", NOW + 62)
    assert [event.reason for event in away.events] == [Reason.GPUS_SUSPENDED]
    assert (away.replica.state, away.replica.leases, away.replica.suspended_gpu) == (R, {Epoch(6)}, "GPU-1")
    assert away.replica.suspend_asked_at is None
    waits = lifecycle.want_gpus(SUSPENDABLE, away.replica, NOW + 63).replica
    assert waits.waits_for_gpus
    back = lifecycle.grant_gpus(SUSPENDABLE, waits, Epoch(8), NOW + 64).replica
    status = ProcessStatus(back.key, 6, ProcessPhase.RUNNING)
    assert lifecycle.note_suspended_gpu(back, status).replica == back, "sent before it got its GPUs"
    resumed = lifecycle.note_suspended_gpu(back, replace(status, gpu_epoch=8)).replica
    assert resumed.suspended_gpu == ""
    assert lifecycle.note_suspended_gpu(waits, status).replica.suspended_gpu == "", "its suspended processes ended"
    assert lifecycle.unsaved_s(SUSPENDABLE, back, NOW + 90) == 0.0


def test_only_running_replica_with_gpus_is_suspended() -> None:
    for row in (replica(R), replace(replica(X), gpu_lease=Epoch(7))):
        assert lifecycle.suspend(SUSPENDABLE, row, "", NOW).effects == ()


def test_next_attempt_of_a_lazy_replica_holds_no_gpus() -> None:
    held = replace(replica(X, next_reason=Reason.PREEMPTED), gpu_wanted_at=NOW, gpu_lease=Epoch(7))
    ended = lifecycle.end_attempt(LAZY, held, report(ExitReason.STOPPED), NOW).replica
    assert (ended.state, ended.leases, ended.gpu_wanted_at) == (P, frozenset(), None)


def test_other_replica_never_waits_for_gpus() -> None:
    assert lifecycle.want_gpus(workload(), replica(R), NOW).replica.gpu_wanted_at is None
