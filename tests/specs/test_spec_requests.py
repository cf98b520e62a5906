"""Valid requests, and the errors of invalid ones."""

from typing import Any

import pytest

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.work.program.supervision import Stdio
from gpupool.domain.work.workload import (
    Dependency,
    Limits,
    Replica,
    RestartPolicy,
    Retry,
    Workload,
    WorkloadKind,
)
from gpupool.specs.request import (
    RequestError,
    Submitter,
    parse_request,
    parse_request_json,
    program_for,
    references,
    to_workload,
)

ID = WorkloadId("w0123456789")
FIRST = WorkloadId("waaaaaaaaaa")
ALICE = Submitter(user="alice", uid=1000, project="default", now=100.0)


def build(**fields: Any) -> tuple[Workload, tuple[Replica, ...]]:
    return to_workload(parse_request(fields), id=ID, submitter=ALICE, resolve={"first": FIRST})


@pytest.mark.parametrize(
    ("fields", "code", "path"),
    [
        ({"gpus": {"fraction": 0}}, ErrorCode.INVALID_FRACTION, ("gpus", "fraction")),
        ({"gpus": {"fraction": -0.1}}, ErrorCode.INVALID_FRACTION, ("gpus", "fraction")),
        ({"gpus": {"fraction": 1.001}}, ErrorCode.INVALID_FRACTION, ("gpus", "fraction")),
        ({"gpus": {"fraction": 0.0001}}, ErrorCode.INVALID_FRACTION, ("gpus", "fraction")),
        ({"gpus": {"fraction": "1e99999999999"}}, ErrorCode.INVALID_FRACTION, ("gpus", "fraction")),
        ({"gpus": {"fraction": True}}, ErrorCode.INVALID_FRACTION, ("gpus", "fraction")),
        ({"gpus": {"count": 0, "fraction": 0.5}}, ErrorCode.INVALID_REQUEST, ("gpus", "fraction")),
        ({"gpus": {"count": -1}}, ErrorCode.INVALID_COUNT, ("gpus", "count")),
        ({"gpus": {"count": 1025}}, ErrorCode.INVALID_COUNT, ("gpus", "count")),
        ({"gpus": {"count": True}}, ErrorCode.INVALID_COUNT, ("gpus", "count")),
        ({"gpus": {"count": 1.5}}, ErrorCode.INVALID_COUNT, ("gpus", "count")),
        ({"gpus": {"memory_mib": "4X"}}, ErrorCode.INVALID_SIZE, ("gpus", "memory_mib")),
        ({"gpus": {"memory_mib": "9" * 400}}, ErrorCode.INVALID_SIZE, ("gpus", "memory_mib")),
        ({"gpus": {"memory_mib": 2**60}}, ErrorCode.INVALID_SIZE, ("gpus", "memory_mib")),
        ({"gpus": {"fraction": 0.5, "memory_mib": 1}}, ErrorCode.INVALID_REQUEST, ("gpus", "memory_mib")),
        ({"memory": 0}, ErrorCode.INVALID_SIZE, ("memory",)),
        ({"memory": 1.5}, ErrorCode.INVALID_SIZE, ("memory",)),
        ({"max_time": 0}, ErrorCode.INVALID_DURATION, ("max_time",)),
        ({"max_time": "1h" * 60}, ErrorCode.INVALID_DURATION, ("max_time",)),
        ({"wait": -1}, ErrorCode.INVALID_DURATION, ("wait",)),
        ({"wait": True}, ErrorCode.INVALID_DURATION, ("wait",)),
        ({"completions": 10_001}, ErrorCode.INVALID_COUNT, ("completions",)),
        ({"parallelism": 0}, ErrorCode.INVALID_COUNT, ("parallelism",)),
        ({"name": "-a"}, ErrorCode.INVALID_NAME, ("name",)),
        ({"name": "w0123456789"}, ErrorCode.INVALID_NAME, ("name",)),
        ({"project": "a b"}, ErrorCode.INVALID_NAME, ("project",)),
        ({"labels": {"a b": "c"}}, ErrorCode.INVALID_NAME, ("labels", "a b")),
        ({"labels": {f"l{n}": "" for n in range(65)}}, ErrorCode.INVALID_REQUEST, ("labels",)),
        ({"labels": {"team": "a\x1b[2J"}}, ErrorCode.INVALID_REQUEST, ("labels", "team")),
        ({"labels": {"team": "a\x9b2J"}}, ErrorCode.INVALID_REQUEST, ("labels", "team")),
        ({"priority": 1001}, ErrorCode.INVALID_REQUEST, ("priority",)),
        ({"priority": "urgent"}, ErrorCode.INVALID_REQUEST, ("priority",)),
        ({"kind": "job"}, ErrorCode.INVALID_REQUEST, ("kind",)),
        ({"tty": "yes"}, ErrorCode.INVALID_REQUEST, ("tty",)),
        ({"umask": "9"}, ErrorCode.INVALID_REQUEST, ("umask",)),
        ({"umask": 0o1777}, ErrorCode.INVALID_REQUEST, ("umask",)),
        ({"env": {"A=B": "c"}}, ErrorCode.INVALID_NAME, ("env",)),
        ({"env": {"": "c"}}, ErrorCode.INVALID_NAME, ("env",)),
        ({"env": {"A": "x" * 2**20}}, ErrorCode.TOO_LARGE, ("env",)),
        ({"env": {f"V{n}": "" for n in range(4097)}}, ErrorCode.INVALID_REQUEST, ("env",)),
        ({"env": {"A": "nul\0"}}, ErrorCode.INVALID_REQUEST, ("env", "A")),
        ({"env": {"A": "\ud800"}}, ErrorCode.INVALID_REQUEST, ("env", "A")),
        ({"env": {"A": None}}, ErrorCode.INVALID_REQUEST, ("env", "A")),
        ({"command": ["x" * 2**20]}, ErrorCode.TOO_LARGE, ("command",)),
        ({"command": [""]}, ErrorCode.INVALID_REQUEST, ("command",)),
        ({"command": []}, ErrorCode.INVALID_REQUEST, ("command",)),
        ({"cpus": float("nan")}, ErrorCode.INVALID_REQUEST, ("cpus",)),
        ({"cpus": 10**400}, ErrorCode.INVALID_REQUEST, ("cpus",)),
        ({"image": "docker-archive:/root/x.tar"}, ErrorCode.INVALID_NAME, ("image",)),
        ({"volumes": ["/a:/b"]}, ErrorCode.INVALID_REQUEST, ("volumes",)),
        ({"on": "x"}, ErrorCode.INVALID_REQUEST, ("on",)),
        ({"kind": "exec"}, ErrorCode.INVALID_REQUEST, ("on",)),
        ({"kind": "exec", "on": "x", "gpus": {"count": 2}}, ErrorCode.INVALID_REQUEST, ("gpus",)),
        ({"kind": "exec", "on": "x", "gpus": {"compute": "cap"}}, ErrorCode.INVALID_REQUEST, ("gpus",)),
        ({"gpus": {"compute": "half"}}, ErrorCode.INVALID_REQUEST, ("gpus", "compute")),
        ({"gpus": {"sharing": "magic"}}, ErrorCode.INVALID_REQUEST, ("gpus", "sharing")),
        ({"gpus": {"fraction": 0.5, "sharing": "whole"}}, ErrorCode.INVALID_REQUEST, ("gpus", "sharing")),
        ({"gpus": {"memory_mib": 2048, "sharing": "mig"}}, ErrorCode.INVALID_REQUEST, ("gpus", "sharing")),
        ({"gpus": {"count": 2, "sharing": "mps"}}, ErrorCode.INVALID_REQUEST, ("gpus", "sharing")),
        ({"kind": "lease"}, ErrorCode.INVALID_REQUEST, ("command",)),
        ({"lifetime": "1h"}, ErrorCode.INVALID_REQUEST, ("lifetime",)),
        ({"kind": "interactive", "completions": 2}, ErrorCode.INVALID_REQUEST, ("completions",)),
        ({"kind": "exec", "on": "x", "restart": "always"}, ErrorCode.INVALID_REQUEST, ("restart",)),
        ({"completions": 2, "client_bound": True}, ErrorCode.INVALID_REQUEST, ("client_bound",)),
        ({"kind": "exec", "on": "x", "linger": "1h"}, ErrorCode.INVALID_REQUEST, ("linger",)),
        ({"sweep": {"grid": {"a": [1, 2]}}, "completions": 3}, ErrorCode.INVALID_COUNT, ("completions",)),
        ({"sweep": {}}, ErrorCode.INVALID_REQUEST, ("sweep",)),
        ({"sweep": {"grid": {"a": [1]}, "list": [{"a": 1}]}}, ErrorCode.INVALID_REQUEST, ("sweep",)),
        ({"sweep": {"grid": {"a": []}}}, ErrorCode.INVALID_REQUEST, ("sweep", "grid", "a")),
        ({"sweep": {"grid": {"a": [None]}}}, ErrorCode.INVALID_REQUEST, ("sweep", "grid", "a", 0)),
        ({"sweep": {"grid": {n: list(range(100)) for n in "abc"}}}, ErrorCode.INVALID_COUNT, ("sweep",)),
        ({"sweep": {"grid": {"index": [1]}}}, ErrorCode.INVALID_NAME, ("sweep",)),
        ({"sweep": {"grid": {"a-b": [1], "a.b": [1]}}}, ErrorCode.INVALID_NAME, ("sweep",)),
        ({"after": [{"workload": "a", "condition": "maybe"}]}, ErrorCode.INVALID_REQUEST, ("after", 0, "condition")),
        ({"nested": [[]]}, ErrorCode.INVALID_REQUEST, ("nested",)),
    ],
)
def test_each_mistake_has_its_code_and_place(
    fields: dict[str, Any], code: ErrorCode, path: tuple[str | int, ...]
) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request({"command": ["true"], **fields})
    assert (caught.value.code, caught.value.path) == (code, path)
    assert str(path[0]) in caught.value.message


@pytest.mark.parametrize(
    ("fields", "suggestion"),
    [({"comand": []}, "command"), ({"max-time": 1}, "max_time"), ({"gpus": {"cont": 1}}, "count")],
)
def test_misspelt_field_is_answered_with_similar_one(fields: dict[str, Any], suggestion: str) -> None:
    with pytest.raises(GpupoolError, match="There is no field") as caught:
        parse_request(fields)
    assert caught.value.hint == f"Did you mean '{suggestion}'?"


def test_unknown_field_is_answered_with_known_fields() -> None:
    with pytest.raises(GpupoolError) as caught:
        parse_request({"command": ["a"], "gpus": {"zzz": 1}})
    assert (
        caught.value.hint == "Known fields: count, fraction, memory_mib, models, labels, compute, sharing, placement."
    )


@pytest.mark.parametrize("data", [None, 3, "text", [], {1: 2}, {"command": {"a"}}, b"bytes"])
def test_request_must_be_mapping_of_plain_values(data: Any) -> None:
    with pytest.raises(GpupoolError):
        parse_request(data)


def test_deep_nesting_is_refused_without_recursion() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(GpupoolError, match="nested deeper than 50"):
        parse_request({"command": deep})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[" * 200_000, "nested deeper"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"cpus": NaN}', "NaN"),
        (b'{"cpus": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"\xff", "UTF-8"),
        (b"{", "not JSON"),
    ],
)
def test_hostile_bodies_are_refused(body: bytes, words: str) -> None:
    with pytest.raises(GpupoolError, match=words):
        parse_request_json(body)


def test_body_above_limit_is_too_large() -> None:
    with pytest.raises(GpupoolError) as caught:
        parse_request_json(b" " * (4 * 2**20 + 1))
    assert caught.value.code is ErrorCode.TOO_LARGE


@pytest.mark.parametrize(
    ("kind", "retry", "preemptible"),
    [
        ("run", Retry(), False),
        ("training", Retry(RestartPolicy.ON_FAILURE, 6, 3), True),
        ("interactive", Retry(), False),
        ("exec", Retry(), False),
        ("lease", Retry(), False),
    ],
)
def test_defaults_follow_the_kind(kind: str, retry: Retry, preemptible: bool) -> None:
    command = {} if kind == "lease" else {"command": ["true"]}
    workload, replicas = build(kind=kind, **command, **({"on": "first"} if kind == "exec" else {}))
    assert (workload.kind, workload.retry, workload.preemptible) == (WorkloadKind(kind), retry, preemptible)
    assert [(r.workload, r.index, r.queued_at) for r in replicas] == [(ID, 0, 100.0)]


@pytest.mark.parametrize(
    ("fields", "retry"),
    [
        ({"kind": "run", "backoff_limit": 2}, Retry(RestartPolicy.ON_FAILURE, 2)),
        ({"kind": "run", "restart": "always"}, Retry(RestartPolicy.ALWAYS, 6, 3)),
        ({"kind": "training", "backoff_limit": 6}, Retry(RestartPolicy.ON_FAILURE, 6)),
        ({"kind": "training", "backoff_limit": 0}, Retry()),
        ({"kind": "training", "restart": "never", "backoff_limit": 3}, Retry()),
    ],
)
def test_restart_and_back_off_complete_each_other(fields: dict[str, Any], retry: Retry) -> None:
    assert build(command=["true"], **fields)[0].retry == retry


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (1, 1)),
        ({"completions": 4}, (4, 4)),
        ({"completions": 4, "parallelism": 2}, (4, 2)),
        ({"parallelism": 3}, (3, 3)),
        ({"parallelism": 9, "completions": 2}, (2, 2)),
        ({"sweep": {"grid": {"a": [1, 2, 3]}}, "parallelism": 2}, (3, 2)),
    ],
)
def test_completions_and_parallelism(fields: dict[str, Any], expected: tuple[int, int]) -> None:
    workload, replicas = build(command=["true"], **fields)
    assert (workload.completions, workload.parallelism) == expected
    assert [replica.index for replica in replicas] == list(range(expected[0]))


def test_every_limit_arrives_in_its_unit() -> None:
    workload, _ = build(
        command=["true"], wait="30m", max_time="2h", idle_timeout=90, grace=0, cpus=1.5, memory="2G", log_limit="1G"
    )
    assert workload.limits == Limits(1800.0, 7200.0, 90.0, 0.0, "TERM", 1.5, 2048, 1024)


@pytest.mark.parametrize("wait", [0, 0.0, "none", "0"])
def test_zero_or_no_wait_means_now_or_fail(wait: object) -> None:
    assert build(command=["true"], wait=wait)[0].limits.wait_s == 0.0


def test_lifetime_counts_from_grant() -> None:
    workload, _ = build(kind="lease", lifetime="1h")
    assert (workload.limits.max_time_s, workload.expires_at, workload.program.argv) == (3600.0, None, ())


@pytest.mark.parametrize(
    ("fields", "stdio"),
    [({}, Stdio.BATCH), ({"stdin": True}, Stdio.PIPES), ({"tty": True, "stdin": True}, Stdio.TTY)],
)
def test_streams(fields: dict[str, Any], stdio: Stdio) -> None:
    assert build(command=["true"], **fields)[0].program.stdio is stdio


@pytest.mark.parametrize(("umask", "mask"), [("022", 0o022), ("27", 0o027), (0o077, 0o077), (None, 0o022)])
def test_umask_text_is_octal(umask: object, mask: int) -> None:
    assert build(command=["true"], umask=umask)[0].program.umask == mask


@pytest.mark.parametrize(("fraction", "permille"), [(0.1, 100), (1, 1000), ("25%", 250), (0.001, 1), (0.057, 57)])
def test_fractions_are_exact(fraction: object, permille: int) -> None:
    assert build(command=["true"], gpus={"fraction": fraction})[0].gpus.permille == permille


def test_references_are_looked_up_and_kept_as_ids() -> None:
    fields = {"command": ["true"], "after": ["first", {"workload": "first", "condition": "any"}]}
    assert references(parse_request(fields)) == ("first",)
    assert build(**fields)[0].after == (Dependency(FIRST, success_only=True), Dependency(FIRST, success_only=False))


def test_unknown_reference_is_an_error_of_caller() -> None:
    def resolve(ref: str) -> WorkloadId:
        raise GpupoolError(ErrorCode.UNKNOWN_WORKLOAD, f"There is no workload '{ref}'.")

    with pytest.raises(GpupoolError, match="no workload 'gone'"):
        to_workload(parse_request({"command": ["a"], "after": ["gone"]}), id=ID, submitter=ALICE, resolve=resolve)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python3", "src/My Train.py"], "my-train-0123456789"),
        (["/usr/bin/nvidia-smi"], "nvidia-smi-0123456789"),
        (["/"], "training-0123456789"),
        (["é" * 99 + "x" * 99], "x" * 40 + "-0123456789"),
    ],
)
def test_workload_without_name_is_named_after_its_program(command: list[str], name: str) -> None:
    assert build(command=command)[0].name == name


def test_relative_folder_is_refused_by_pool() -> None:
    with pytest.raises(GpupoolError, match="absolute path") as caught:
        build(command=["true"], workdir="here")
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_single_command_is_never_changed() -> None:
    argv = ["awk", "{print $1}", "{{x}}", "{index}", "}{"]
    assert program_for(build(command=argv)[0], 0)[0] == tuple(argv)


def test_only_index_of_several_replicas_is_filled_in() -> None:
    workload, _ = build(command=["x", "{index}-{{a}}-{print}"], completions=3, env={"A": "b"})
    argv, env = program_for(workload, 2)
    assert argv == ("x", "2-{{a}}-{print}")
    assert env == {"A": "b", "GPUPOOL_INDEX": "2", "GPUPOOL_COMPLETIONS": "3"}


def test_sweep_fills_in_parameters_and_environment() -> None:
    workload, _ = build(
        command=["train", "--lr={lr}", "{{lr}}", "{index}"], sweep={"grid": {"lr": [0.1, 1e-5], "fast.mode": [True]}}
    )
    assert program_for(workload, 1) == (
        ("train", "--lr=1e-05", "{lr}", "1"),
        {
            "GPUPOOL_INDEX": "1",
            "GPUPOOL_COMPLETIONS": "2",
            "GPUPOOL_PARAM_LR": "1e-05",
            "GPUPOOL_PARAM_FAST_MODE": "true",
            "GPUPOOL_PARAMETERS": '{"lr": 1e-05, "fast.mode": true}',
        },
    )


def test_placeholder_must_have_value_in_every_run() -> None:
    sweep = {"list": [{"a": 1, "b": 2}, {"a": 1}]}
    assert build(command=["x", "{a}"], sweep=sweep)[0].completions == 2
    with pytest.raises(GpupoolError, match=r"placeholder \{b\}"):
        build(command=["x", "{b}"], sweep=sweep)


def test_command_that_parameters_make_too_large_is_refused_unbuilt() -> None:
    with pytest.raises(GpupoolError) as caught:
        build(command=["{a}" * 100_000], sweep={"grid": {"a": ["x" * 60_000]}})
    assert (caught.value.code, caught.value.path) == (ErrorCode.TOO_LARGE, ("command",))


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({}, True),
        ({"checkpoint": "30m"}, True),
        ({"grace": "1m"}, True),
        ({"checkpoint": 0}, False),
        ({"notice_signal": "USR1"}, False),
    ],
)
def test_program_that_saves_on_preemption_cannot_be_killed_at_once(fields: dict[str, Any], *, allowed: bool) -> None:
    body = {"command": ["work"], "on_preempt": "kill", **fields}
    if allowed:
        assert build(**body)[0].limits.preemption_grace_s == 0
        return
    with pytest.raises(GpupoolError, match="cannot be kill") as caught:
        build(**body)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
