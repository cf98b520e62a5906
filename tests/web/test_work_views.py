"""Parts of the pages of workloads: timelines, forms, command lines, repeated requests. No pool is needed."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.cli.request.options import parse
from gpupool.cli.request.submit import build_requests
from gpupool.cli.request.submit_options import SUBMIT
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import WorkloadId
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.work.workload import Program, Replica, ReplicaState, Workload, WorkloadKind, WorkloadState
from gpupool.specs.request import Submitter, parse_request, to_workload
from gpupool.specs.resubmit import request_of
from gpupool.web.pages.submit.command_line import command_line
from gpupool.web.pages.submit.form import form_values, read_environment, read_form, write_environment
from gpupool.web.pages.workload.timeline import timeline

ID = WorkloadId("w0000000001")
USUAL = {"PATH": "/usr/bin", "HOME": "/home/ann"}
HOME = "/home/ann"


# Timelines


def made(**changes: Any) -> Workload:
    base = Workload(ID, "train", WorkloadKind.TRAINING, "default", "ann", Program(("work",)), GpuRequest(), 1000.0)
    return replace(base, **changes)


def story(*told: tuple[float, Reason, str]) -> list[Event]:
    rows = enumerate(told, 2)
    first = Event(1000.0, "ann", Reason.SUBMITTED, "submitted train", ID, id=1)
    return [first, *(Event(at, "pool", why, message, ID, 0, id=number) for number, (at, why, message) in rows)]


def bars(workload: Workload, replica: Replica, events: list[Event], now: float) -> list[tuple[str, float, float]]:
    (lane,) = timeline(workload, [replica], events, now).lanes
    return [(bar.phase.value, bar.since, bar.until) for bar in lane.bars]


def test_timeline_shows_waits_starts_runs_and_interruptions() -> None:
    events = story(
        (1060, Reason.GRANTED, "got GPUs on n1"),
        (1062, Reason.STARTED, "started on n1"),
        (1100, Reason.PREEMPTED, "for others; asked to stop with 10 s of grace"),
        (1105, Reason.PREEMPTED, "for others; will be run again"),
        (1200, Reason.GRANTED, "got GPUs on n2"),
        (1201, Reason.STARTED, "started on n2"),
        (1300, Reason.EXITED, "exited with status 0"),
    )
    ended = made(state=WorkloadState.SUCCEEDED, finished_at=1300.0)
    replica = Replica(ID, 0, ReplicaState.SUCCEEDED, attempt=2, started_at=1201.0, finished_at=1300.0)
    assert bars(ended, replica, events, 9999.0) == [
        ("waiting", 1000, 1060),
        ("starting", 1060, 1062),
        ("running", 1062, 1100),
        ("stopping", 1100, 1105),
        ("waiting", 1105, 1200),
        ("starting", 1200, 1201),
        ("running", 1201, 1300),
    ]


def test_running_phase_extends_to_now_and_full_width() -> None:
    events = story((1010, Reason.GRANTED, "got GPUs on n1"), (1012, Reason.STARTED, "started on n1"))
    replica = Replica(ID, 0, ReplicaState.RUNNING, attempt=1, started_at=1012.0)
    shown = timeline(made(state=WorkloadState.RUNNING), [replica], events, 1100.0)
    bar = shown.lanes[0].bars[-1]
    assert (bar.phase.value, bar.until, bar.x + bar.width) == ("running", 1100.0, pytest.approx(1000.0))
    assert (shown.since, shown.until, shown.lanes[0].total_s("running")) == (1000.0, 1100.0, 88.0)


def test_replica_without_events_shows_its_row() -> None:
    replica = Replica(ID, 0, ReplicaState.FAILED, attempt=3, queued_at=1100.0, started_at=1150.0, finished_at=1170.0)
    failed = made(state=WorkloadState.FAILED, finished_at=1170.0)
    assert bars(failed, replica, [], 9999.0) == [("waiting", 1100, 1150), ("running", 1150, 1170)]


def test_warnings_and_requests_are_marks_and_not_bars() -> None:
    events = story((1010, Reason.GRANTED, ""), (1012, Reason.STARTED, ""), (1050, Reason.IDLE_WARNING, "idle for 40s"))
    events.append(Event(1060.0, "ann", Reason.SUSPENDED_BY_USER, "ann asked for it", ID, id=9))
    replica = Replica(ID, 0, ReplicaState.RUNNING, attempt=1, started_at=1012.0)
    (lane,) = timeline(made(state=WorkloadState.RUNNING), [replica], events, 1100.0).lanes
    assert [mark.reason for mark in lane.marks] == ["IDLE_WARNING", "SUSPENDED_BY_USER"]
    assert [bar.phase.value for bar in lane.bars] == ["waiting", "starting", "running"]


# Forms

FILLED = {
    "kind": "training",
    "name": "t1",
    "command": "python3 train.py --lr {lr} 'two words'",
    "gpus": "0.5",
    "models": "t4, v100",
    "priority": "high",
    "max_time": "4h",
    "idle_timeout": "30m",
    "cpus": "2.5",
    "memory": "4G",
    "env": "MODE=fast\nTEXT=a\\nb\\\\c",
    "labels": "team=vision",
    "windows": "nights",
    "after": "prepare clean:any",
    "sweep": "lr=0.1,0.01\nopt=adam,sgd",
    "parallelism": "2",
    "preemptible": "no",
    "backoff_limit": "3",
    "workdir": "/data",
}


def test_form_makes_the_request_of_the_command_line() -> None:
    draft = read_form(FILLED, USUAL, HOME)
    assert draft.request is not None, draft.wrong
    line = command_line(draft.body, USUAL)
    _, _, *argv = shlex.split(line)
    name, options = argv[0], argv[1:]
    values, program = parse(SUBMIT, options)
    (theirs,) = build_requests(values, [name], program)
    ours, told = draft.request.to_body(), theirs.to_body()
    for free in ("env", "umask", "request_id"):
        ours.pop(free, None), told.pop(free, None)
    assert ours == told
    assert draft.request.env == {**USUAL, "MODE": "fast", "TEXT": "a\nb\\c"}


def test_every_error_is_shown_next_to_its_field() -> None:
    wrong = {"gpus": "1.5", "max_time": "soon", "cpus": "many", "priority": "urgent", "completions": "0", "env": "x"}
    draft = read_form({"kind": "training", **wrong}, USUAL, HOME)
    assert draft.request is None
    assert {one.field for one in draft.wrong} == {*wrong, "command"}
    assert all(one.message for one in draft.wrong)


def test_lease_needs_no_command_and_session_has_terminal() -> None:
    lease = read_form({"kind": "lease", "gpus": "1", "lifetime": "2h", "command": "left over"}, USUAL, HOME)
    assert lease.request is not None
    assert (lease.request.kind, lease.request.lifetime, lease.request.command) == (WorkloadKind.LEASE, 7200.0, [])
    assert command_line(lease.body) == "gpupool request_gpus -g 1 --for 2h"
    session = read_form({"kind": "interactive", "gpus": "1", "command": "bash"}, USUAL, HOME)
    assert session.request is not None
    assert session.request.tty
    assert command_line(session.body | {"workdir": ""}, USUAL) == "gpupool submit --interactive -g 1 -- bash"


def test_shell_line_is_one_argument() -> None:
    draft = read_form({"kind": "training", "gpus": "1", "shell": "on", "command": "a | b\nc $X"}, USUAL, HOME)
    assert draft.request is not None
    assert draft.request.command == ["sh", "-c", "a | b\nc $X"]


@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), st.text(r"ab n\\\n=")))
def test_environment_is_parsed_from_its_field(env: dict[str, str]) -> None:
    stripped = {name: value.strip() for name, value in env.items()}
    assert read_environment(write_environment(stripped)) == stripped


# Again

SUBMITTED: list[dict[str, Any]] = [
    {"command": ["work", "a b"], "gpus": {"fraction": 0.25}, "name": "mine", "max_time": "4h", "env": {"A": "b"}},
    {"command": ["work"], "gpus": {"count": 2, "models": ["t4"]}, "priority": 50, "labels": {"team": "x"}},
    {"command": ["work", "{lr}"], "sweep": {"grid": {"lr": [0.1, 1], "opt": ["a", "b"]}}, "parallelism": 2},
    {"command": ["work", "{lr}"], "sweep": {"list": [{"lr": 1}, {"lr": 3}, {"lr": 1}]}},
    {"command": ["work"], "gang": {"workers": 4, "min": 2, "within": "rack", "strict": True}},
    {"command": ["work"], "gang": {"workers": 4, "mixed_models": True}},
    {"command": ["work"], "roles": [{"name": "a"}, {"name": "b"}], "gang": {"workers": 2, "mixed_models": True}},
    {"command": ["bash"], "kind": "interactive", "tty": True, "gpus": {"memory_mib": 2048}},
    {"kind": "lease", "gpus": {"count": 1}, "lifetime": "2h"},
    {"command": ["work"], "completions": 3, "restart": "never", "preemptible": False, "windows": ["nights"]},
    {"command": ["work"], "backoff_limit": 2, "cpus": 1.5, "memory": "1G", "wait": 0, "idle_timeout": "10m"},
    {"command": ["work"], "checkpoint": "30m"},
    {"command": ["work"], "grace": 0, "notice_signal": "USR1", "log_limit": 8, "ttl": "1d", "max_time": "2h"},
    {"command": ["work"], "framework": "tf", "gang": {"workers": 2}, "success_policy": "first-worker"},
]


@pytest.mark.parametrize("asked", SUBMITTED)
def test_resubmission_creates_equal_workload(asked: dict[str, Any]) -> None:
    first = workload_of(asked)
    second = workload_of(request_of(first))
    named = "name" in asked
    assert replace(second, name=first.name) == first
    assert (second.name == first.name) or not named


def workload_of(body: dict[str, Any]) -> Workload:
    found, _ = to_workload(parse_request(body), id=ID, submitter=Submitter("ann", 1, "default", 1000.0), resolve={})
    return found


@pytest.mark.parametrize("asked", SUBMITTED)
def test_form_from_workload_repeats_request_or_offers_file(asked: dict[str, Any]) -> None:
    body = request_of(workload_of(asked))
    values = form_values(body, USUAL, HOME)
    beyond = {"checkpoint", "success_policy", "grace", "roles"} & set(asked)
    beyond |= {"list"} & set(asked.get("sweep", {})) | {"within", "mixed_models"} & set(asked.get("gang", {}))
    assert (values is None) == bool(beyond)
    if values is not None:
        draft = read_form(values, USUAL, HOME)
        assert draft.request is not None
        again = workload_of(draft.request.to_body())
        first = workload_of(asked)
        program = replace(first.program, env={**USUAL, **first.program.env}, cwd=first.program.cwd or HOME)
        assert replace(again, name=first.name, request_id=None, request_digest="") == replace(
            first, program=program if first.kind is not WorkloadKind.LEASE else first.program
        )


def test_refusals_are_shown_next_to_their_field() -> None:
    draft = read_form({"kind": "training", "gpus": "1", "command": "x"}, USUAL, HOME)
    taken = draft.with_wrong(GpupoolError(ErrorCode.NAME_TAKEN, "'x' is taken.", "Choose another."))
    assert (taken.request, taken.wrong[-1].field) == (None, "name")
