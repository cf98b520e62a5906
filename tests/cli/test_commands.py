"""Every other command against a pool that answers: what it asks, what it prints, how it ends."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_fake_pool import COMMAND, NOW, FakePool, detail_view, replica_view, why_view, workload_view
from cli_views import ANSWERS, event_view, node_view, plan_view, pool_view, project_view, token_view

from gpupool.api.schemas.work.workloads import WorkloadSummary
from gpupool.domain.protocol.log_records import ERR, OUT, RECORD, WHOLE, LogBatch


@pytest.fixture
def pool(pool: FakePool) -> FakePool:
    pool.answers.update(ANSWERS)
    return pool


LISTINGS = [
    ("ps",),
    ("ps", "-a", "--state", "failed", "-l", "a=b"),
    ("list",),
    ("list", "nodes"),
    ("list", "projects"),
    ("describe", "node", "gpu1"),
    ("describe", "project", "team-a"),
    ("list_gpus",),
    ("list-gpus",),
    ("smi",),
    ("nodes",),
    ("events",),
    ("top", "--once"),
    ("project", "list"),
    ("user", "list"),
    ("token", "list"),
    ("usage",),
    ("whoami",),
    ("health",),
    ("version",),
    ("config", "show"),
]


@pytest.mark.parametrize("words", LISTINGS, ids=" ".join)
def test_every_list_prints_text_and_json(gpupool: Any, words: tuple[str, ...]) -> None:
    plain = gpupool(*words)
    assert plain.returncode in {0, 1}
    assert plain.stdout
    assert b"\x1b" not in plain.stdout
    machine = gpupool(*words, "--json")
    assert json.loads(machine.stdout) is not None
    assert machine.returncode == plain.returncode


def test_json_output_equals_the_api(pool: FakePool, gpupool: Any) -> None:
    assert json.loads(gpupool("list_gpus", "--json").stdout) == pool.answers["GET /v1/gpus"]
    assert json.loads(gpupool("ps", "--json").stdout) == {"workloads": pool.answers["GET /v1/workloads"]["workloads"]}


def test_all_pages_are_fetched_and_reasons_with_the_first(pool: FakePool, gpupool: Any) -> None:
    first = {"workloads": [workload_view("w0000000001")], "next_cursor": "c2"}
    pool.answers["GET /v1/workloads?all=false&reasons=true&limit=1000"] = first
    pool.answers["GET /v1/workloads?all=false&limit=1000&cursor=c2"] = {
        "workloads": [workload_view("w0000000002")],
        "next_cursor": None,
    }
    assert len(json.loads(gpupool("ps", "--json").stdout)["workloads"]) == 2


@pytest.mark.parametrize("words", [("ps",), ("list", "jobs")])
def test_tables_ask_only_for_the_fields_of_a_list(pool: FakePool, gpupool: Any, words: tuple[str, ...]) -> None:
    shown = WorkloadSummary.model_fields
    views = [{key: value for key, value in workload_view("w0000000001").items() if key in shown}]
    pool.answers["GET /v1/workloads?all=false&summary=true&reasons=true&limit=1000"] = {
        "workloads": views,
        "next_cursor": None,
    }
    assert b"w0000000001" in gpupool(*words).stdout


def test_list_shows_why_work_waits(pool: FakePool, gpupool: Any) -> None:
    reason = {"code": "SUBMITTED", "message": ""}
    known = workload_view("w0000000001") | {"state": "queued", "reason": reason}
    known |= {"waiting": {"code": "WAITING_FOR_GPU", "message": "needs 2 GPUs; 1.00 free"}}
    unknown = workload_view("w0000000002") | {"state": "queued", "reason": reason, "command": ["python", "train.py"]}
    pool.answers["GET /v1/workloads"] = {"workloads": [known, unknown], "next_cursor": None}
    first, second = gpupool("ps").stdout.decode().splitlines()[1:]
    assert first.endswith("needs 2 GPUs; 1.00 free")
    assert second.endswith("python train.py")


@pytest.mark.parametrize("words", [("ps",), ("list", "nodes"), ("list_gpus",), ("smi",), ("nodes",)])
def test_emulated_pools_are_marked(pool: FakePool, gpupool: Any, words: tuple[str, ...]) -> None:
    pool.answers["GET /v1/pool"] = pool_view(emulated=True)
    done = gpupool(*words)
    assert b"emulated GPUs: programs run on the CPU" in done.stdout + done.stderr


def test_closed_output_is_no_error(pool: FakePool) -> None:
    many = [workload_view(f"w{n:010d}") for n in range(3000)]
    pool.answers["GET /v1/workloads"] = {"workloads": many, "next_cursor": None}
    command = " ".join([*COMMAND, "ps"])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        env=pool.env,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith(b"NAME")
    assert done.stderr == b""
    assert done.returncode == 0


@pytest.mark.parametrize("words", ["ps", "ps --json", "stop --help"])
def test_full_disk_is_not_reported_as_a_missing_pool(pool: FakePool, words: str) -> None:
    pool.answers["GET /v1/workloads"] = {"workloads": [workload_view("w0000000001")], "next_cursor": None}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *words.split()], env=pool.env, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert done.stderr.startswith(b"gpupool: The output cannot be written (No space left on device). [INVALID_FILE]")
    assert done.returncode == 125


def test_missing_pool_error_has_advice(pool: FakePool, gpupool: Any) -> None:
    pool.down()
    done = gpupool("ps")
    pool.up()
    assert done.returncode == 125
    assert b"[POOL_UNREACHABLE]" in done.stderr
    assert b"gpupool up" in done.stderr


def test_misspelt_name_gets_suggestions(pool: FakePool, gpupool: Any) -> None:
    unknown = {"code": "UNKNOWN_WORKLOAD", "message": "There is no workload 'trian-1'.", "hint": ""}
    pool.answers["GET /v1/workloads/trian-1"] = (404, {"error": unknown})
    done = gpupool("describe", "trian-1")
    assert b"Did you mean 'train-1'?" in done.stderr
    assert done.returncode == 125


def test_names_are_escaped_in_request_paths(pool: FakePool, gpupool: Any) -> None:
    gpupool("why", "../pool?x=1")
    assert pool.requests[-1][1] == "/v1/workloads/..%2Fpool%3Fx%3D1/why"


def test_describe_shows_wait_reason(pool: FakePool, gpupool: Any) -> None:
    for ref in ("a", "w0000000009"):
        pool.answers[f"GET /v1/workloads/{ref}"] = shown(detail_view("w0000000009"))
    pool.answers["GET /v1/workloads"] = {"workloads": [workload_view("w0000000009")], "next_cursor": None}
    pool.answers["GET /v1/workloads/w0000000009/why"] = why_view()
    for words in (("describe", "a"), ("describe", "job", "a")):
        assert b"Position 3" in gpupool(*words).stdout


def shown(detail: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in detail.items() if not key.startswith("_")}


# Leases


def test_leases_are_requested_listed_and_released(pool: FakePool, gpupool: Any, tmp_path: Path) -> None:
    del pool.answers["GET /v1/workloads"]  # the pool lists what was submitted
    done = gpupool("request_gpus", "-n", "1", "-m", "2048", "--lifetime", "2h")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.decode().strip())
    assert json.loads(path.read_text())["id"] == "w0000000000"
    body = pool.submitted()
    assert body["kind"] == "lease"
    assert body["lifetime"] == "2h"
    assert body["gpus"] == {"count": 1, "memory_mib": "2048"}
    assert "command" not in body
    used = gpupool("client", "--", "echo", "hi")
    assert used.stdout == b"hi\n", used.stderr
    assert pool.submitted()["on"] == "w0000000000"
    assert gpupool("client", "-f", str(path), "echo 'a  b'").stdout == b"a  b\n"
    assert gpupool("release_gpus", "-f", str(path)).returncode == 0
    assert ("POST", "/v1/workloads/w0000000000/stop", {}) in pool.requests
    assert not path.exists()
    assert b"You have no lease" in gpupool("client", "--", "true").stderr


def test_request_gpus_accepts_a_plain_number(pool: FakePool, gpupool: Any) -> None:
    assert gpupool("request_gpus", "2", "-q").returncode == 0
    assert pool.submitted()["gpus"] == {"count": 2}


def test_extend_changes_the_expiry(pool: FakePool, gpupool: Any) -> None:
    pool.answers["POST /v1/workloads/mine/extend"] = workload_view("w0000000001", kind="lease")
    assert gpupool("extend", "2h", "mine").returncode == 0
    assert pool.requests[-1] == ("POST", "/v1/workloads/mine/extend", {"seconds": 7200.0})


# Submitting


def test_submit_prints_the_name_and_does_not_wait(pool: FakePool, gpupool: Any) -> None:
    pool.queue_all = True
    done = gpupool("submit", "night", "-g", "0.5", "--backoff-limit", "2", "--", "python3", "t.py", "--epochs", "3")
    assert done.stdout == b"night\n"
    body = pool.submitted()
    assert "kind" not in body  # training is what a job is unless it says otherwise
    assert body["command"] == ["python3", "t.py", "--epochs", "3"]
    assert body["gpus"] == {"count": 1, "fraction": 0.5}
    assert body["backoff_limit"] == 2


def test_submit_generates_a_name(pool: FakePool, gpupool: Any) -> None:
    pool.queue_all = True
    assert gpupool("submit", "--", "python3", "t.py").returncode == 0
    assert "name" not in pool.submitted()


def test_submit_creates_interactive_session_and_sweep(pool: FakePool, gpupool: Any) -> None:
    pool.queue_all = True
    gpupool("submit", "dev", "--interactive", "-g", "0.5", "--", "bash")
    assert pool.submitted()["kind"] == "interactive"
    assert pool.submitted()["tty"] is True
    gpupool("submit", "hpo", "--sweep", "lr=0.1,0.01", "--parallelism", "1", "--", "t.py", "{lr}")
    assert pool.submitted()["sweep"] == {"grid": {"lr": [0.1, 0.01]}}


def test_options_override_the_job_file(pool: FakePool, gpupool: Any, tmp_path: Path) -> None:
    pool.queue_all = True
    job = tmp_path / "job.yml"
    job.write_text("name: a\ncommand: [prog]\nenv: {A: 1}\n---\nname: b\ncommand: [prog]\n")
    done = gpupool("submit", "-f", str(job), "--max-time", "1h", "--json")
    assert [w["name"] for w in json.loads(done.stdout)["workloads"]] == ["a", "b"]
    assert pool.submitted()["max_time"] == 3600.0
    assert len({detail["_body"]["request_id"] for detail in pool.workloads.values()}) == 2
    assert next(iter(pool.workloads.values()))["_body"]["env"]["A"] == "1"


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        (("--compute", "cap"), {"fraction": 0.5, "models": ["t4"], "compute": "cap"}),
        (("--sharing", "mps"), {"fraction": 0.5, "models": ["t4"], "sharing": "mps"}),
        (("-p", "0.1"), {"fraction": 0.1}),
    ],
)
def test_sharing_option_is_added_to_gpu_amount_of_file(
    pool: FakePool, gpupool: Any, tmp_path: Path, options: tuple[str, ...], gpus: Any
) -> None:
    pool.queue_all = True
    job = tmp_path / "job.yml"
    job.write_text("command: [prog]\ngpus: {fraction: 0.5, models: [t4]}\n")
    assert gpupool("submit", "-f", str(job), *options).returncode == 0
    assert pool.submitted()["gpus"] == gpus


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("-f", "/no/such/job.yml"), "INVALID_FILE"),
        (("-g", "1.5", "--", "x"), "INVALID_FRACTION"),
        (("-g", "-1", "--", "x"), "INVALID_COUNT"),
        (("--sweep", "lr", "--", "x"), "INVALID_REQUEST"),
        (("name",), "INVALID_REQUEST"),
    ],
)
def test_submit_refuses_invalid_options_before_sending(pool: FakePool, gpupool: Any, words: Any, code: str) -> None:
    done = gpupool("submit", *words)
    assert done.returncode == 125
    assert f"[{code}]".encode() in done.stderr
    assert not pool.workloads


def test_dry_run_shows_the_request_and_submits_nothing(pool: FakePool, gpupool: Any) -> None:
    pool.answers["POST /v1/plan"] = plan_view()
    done = gpupool("submit", "x", "-p", "0.3", "--dry-run", "--", "prog")
    assert b"fraction: 0.3" in done.stdout
    assert b"# It would start now on gpu1: 0.50 of GPU 0." in done.stdout
    pool.answers["POST /v1/plan"] = (422, {"error": {"code": "UNKNOWN_MODEL", "message": "No h100.", "hint": "T4."}})
    refused = gpupool("submit", "x", "--dry-run", "--", "prog")
    assert (refused.returncode, b"# It would be rejected: No h100. [UNKNOWN_MODEL]" in refused.stdout) == (0, True)
    assert not pool.workloads
    assert "plans" in json.loads(gpupool("submit", "x", "--dry-run", "--json", "--", "prog").stdout)


def test_submit_waits_until_finished(pool: FakePool, gpupool: Any) -> None:
    pool.answers["POST /v1/workloads"] = (201, workload_view("w0000000005", state="queued"))
    ended = shown(detail_view("w0000000005", state="failed", exit_status=3))
    pool.answers["GET /v1/workloads/w0000000005/wait"] = ended
    assert gpupool("submit", "--wait-finished", "--", "prog").returncode == 3


# Control


def test_stop_ends_one_replica_with_grace_period(pool: FakePool, gpupool: Any) -> None:
    pool.answers["POST /v1/workloads/sweep/stop"] = workload_view("w1", name="sweep", state="running")
    done = gpupool("stop", "sweep/3", "--grace", "1m")
    assert done.returncode == 0
    assert pool.requests[-1][2] == {"force": False, "grace_s": 60.0, "index": 3}
    assert b"sweep/3 is asked to stop" in done.stderr


def test_restart_sends_replica_and_grace_period(pool: FakePool, gpupool: Any) -> None:
    pool.answers["POST /v1/workloads/sweep/restart"] = workload_view("w1", name="sweep", state="running")
    done = gpupool("restart", "sweep/3", "--grace", "1m")
    assert done.returncode == 0
    assert pool.requests[-1][2] == {"force": False, "grace_s": 60.0, "index": 3}
    assert b"sweep/3 restarts on the same GPUs" in done.stderr


@pytest.mark.parametrize("verb", ["suspend", "resume"])
def test_commands_continue_after_a_failed_object(pool: FakePool, gpupool: Any, verb: str) -> None:
    pool.answers[f"POST /v1/workloads/b/{verb}"] = workload_view("w2", name="b", state="suspended")
    done = gpupool(verb, "a", "b")
    assert done.returncode == 125
    assert b"b is suspended" in done.stderr


def test_delete_all_needs_confirmation(pool: FakePool, gpupool: Any) -> None:
    refused = gpupool("delete", "--all")
    assert refused.returncode == 125
    assert not [r for r in pool.requests if r[0] in {"DELETE", "POST"}]
    for workload in ("w0000000001", "w0000000002"):
        pool.answers[f"GET /v1/workloads/{workload}"] = shown(detail_view(workload, state="stopped"))
        pool.answers[f"DELETE /v1/workloads/{workload}"] = (204, None)
    assert gpupool("delete", "--all", "--yes").returncode == 0
    assert len([r for r in pool.requests if r[0] == "DELETE"]) == 2


@pytest.mark.parametrize(
    ("state", "exit_status", "status"), [("succeeded", 0, 0), ("failed", 7, 7), ("stopped", None, 1)]
)
def test_wait_returns_the_status_of_the_workload(
    pool: FakePool, gpupool: Any, state: str, exit_status: Any, status: int
) -> None:
    pool.answers["GET /v1/workloads/a/wait"] = shown(detail_view("w1", state=state, exit_status=exit_status))
    assert gpupool("wait", "a").returncode == status


def test_wait_times_out(pool: FakePool, gpupool: Any) -> None:
    pool.answers["GET /v1/workloads/a/wait"] = shown(detail_view("w1", state="running"))
    assert gpupool("wait", "a", "--timeout", "200ms").returncode == 124


# Output


def chunk(data: bytes, stream: str = "out", at: float = NOW) -> dict[str, Any]:
    return {"at": at, "stream": stream, "data": base64.b64encode(data).decode(), "cursor": "c1"}


def records(*pieces: tuple[int, bytes], end: bytes = WHOLE) -> bytes:
    """Return a whole log as the API sends it."""
    data = b"".join(RECORD.pack(int(NOW * 1e9), stream, len(text)) + text for stream, text in pieces)
    return LogBatch(1, len(data), data).encode() + end


def test_logs_are_printed_unchanged(pool: FakePool, gpupool: Any) -> None:
    pool.answers["GET /v1/workloads/a/logs"] = records((OUT, b"\xff\x00out"), (ERR, b"err\n"))
    done = gpupool("logs", "a/2", "--tail", "5")
    assert (done.stdout, done.stderr) == (b"\xff\x00out", b"err\n")
    assert "index=2" in str(pool.targets[-1])
    page = {"chunks": [chunk(b"\xff\x00out"), chunk(b"err\n", "err")], "cursor": "c1", "end": True}
    pool.answers["GET /v1/workloads/a/logs"] = page
    assert json.loads(gpupool("logs", "a", "--json").stdout) == {"chunks": page["chunks"], "dropped": False}


def test_log_timestamps_mark_lines(pool: FakePool, gpupool: Any) -> None:
    pool.answers["GET /v1/workloads/a/logs"] = records((OUT, b"one\ntw"), (OUT, b"o\n"))
    stamp = b"2023-11-14T22:13:20.000+00:00 "
    assert gpupool("logs", "--timestamps", "a").stdout == stamp + b"one\n" + stamp + b"two\n"


def test_interrupted_log_is_resumed_at_its_cursor(pool: FakePool, gpupool: Any) -> None:
    first = records((OUT, b"one\n"), end=b"")
    pool.answers["GET /v1/workloads/a/logs?index=0&tail=9"] = first + RECORD.pack(0, OUT, 99) + b"torn"
    cursor = f"1%3A{len(first) - len(LogBatch(1, len(first), b'').encode())}"
    pool.answers[f"GET /v1/workloads/a/logs?index=0&cursor={cursor}"] = records((OUT, b"two\n"))
    assert gpupool("logs", "a/0", "--tail", "9").stdout == b"one\ntwo\n"


def segment(number: int, text: bytes) -> bytes:
    data = RECORD.pack(int(NOW * 1e9), OUT, len(text)) + text
    return LogBatch(number, len(data), data).encode()


def test_deleted_output_is_reported(pool: FakePool, gpupool: Any) -> None:
    path = "GET /v1/workloads/a/logs"
    deleted = b"older output was deleted: the log reached its size limit"
    pool.answers[path + "?index=0"] = segment(4, b"four\n") + segment(5, b"five\n") + WHOLE
    pool.answers[path + "?index=0&limit=1"] = {"chunks": [], "cursor": "4:0", "end": False, "dropped": True}
    done = gpupool("logs", "a/0")
    assert (done.stdout, done.stderr.count(deleted), done.returncode) == (b"four\nfive\n", 1, 0)
    pool.answers[path + "?index=0&limit=1"] = {"chunks": [], "cursor": "4:0", "end": False, "dropped": False}
    assert gpupool("logs", "a/0").stderr == b""
    pool.answers[path + "?index=0"] = segment(1, b"one\n") + segment(3, b"three\n") + WHOLE
    assert deleted in gpupool("logs", "a/0").stderr
    messages = [(f"{n}:9", "chunk", chunk(b"x\n") | {"cursor": f"{n}:9"}) for n in (1, 2, 7)]
    pool.answers[path + "?index=0&follow=true"] = stream(*messages, ("7:9", "end", {}))
    done = gpupool("logs", "-f", "a/0")
    assert (done.stdout, done.stderr.count(deleted)) == (b"x\n" * 3, 1)
    pool.answers[path + "?index=0"] = WHOLE
    pool.answers[path + "?index=0&limit=1"] = {"chunks": [], "cursor": "", "end": True, "dropped": True}
    assert b"the output was deleted" in gpupool("logs", "a/0").stderr


def test_invalid_log_answer_is_an_error(pool: FakePool, gpupool: Any) -> None:
    pool.answers["GET /v1/workloads/a/logs"] = b"\0" * 200
    done = gpupool("logs", "a")
    assert (done.stdout, done.returncode) == (b"", 125)
    pool.answers["GET /v1/workloads/a/logs"] = {"chunks": [], "cursor": "", "end": True}
    assert b"[UNSUPPORTED]" in gpupool("logs", "a").stderr


def stream(*messages: tuple[str, str, Any]) -> bytes:
    parts = [f"id: {i}\nevent: {event}\ndata: {json.dumps(data)}\n\n" for i, event, data in messages]
    return (": ping\n\n" + "".join(parts)).encode()


def test_logs_are_followed_to_the_end(pool: FakePool, gpupool: Any) -> None:
    messages = [("c1", "data", chunk(b"one\n")), ("c2", "data", chunk(b"two\n", "err")), ("c3", "end", {})]
    pool.answers["GET /v1/workloads/a/logs"] = stream(*messages)
    done = gpupool("logs", "-f", "a")
    assert (done.stdout, done.stderr, done.returncode) == (b"one\n", b"two\n", 0)


def test_events_are_followed_after_existing_ones(pool: FakePool, gpupool: Any) -> None:
    pool.answers["GET /v1/events/stream"] = stream(("8", "event", event_view(id=8, reason="EXITED")))
    lines = gpupool("events", "-f").stdout.decode().splitlines()
    assert ["STARTED" in lines[0], "EXITED" in lines[1]] == [True, True]
    assert [json.loads(line)["id"] for line in gpupool("events", "-f", "--json").stdout.splitlines()] == [7, 8]


# Projects, people


def test_projects_are_made_changed_and_deleted(pool: FakePool, gpupool: Any) -> None:
    pool.answers["POST /v1/projects"] = (201, project_view(name="b"))
    pool.answers["PATCH /v1/projects/b"] = project_view(name="b")
    pool.answers["DELETE /v1/projects/b"] = (204, None)
    assert gpupool("project", "create", "b", "--quota", "2.5", "--member", "ann").returncode == 0
    assert pool.requests[-1][2] == {"name": "b", "quota_permille": 2500, "members": ["ann"]}
    assert gpupool("project", "set", "b", "--quota", "none", "--no-over-quota", "--max-time", "1h").returncode == 0
    assert pool.requests[-1][2] == {"quota_permille": None, "over_quota": False, "max_time_s": 3600.0}
    assert gpupool("project", "delete", "b").returncode == 0
    assert gpupool("project", "set", "b", "--quota", "x").returncode == 125


def test_project_sharing_rules_are_set_and_removed(pool: FakePool, gpupool: Any) -> None:
    pool.answers["PATCH /v1/projects/b"] = project_view(name="b")
    for arguments, sent in (
        (
            ("--compute-default", "none", "--compute-allowed", "cap,none"),
            {"compute_default": "none", "compute_allowed": ["cap", "none"]},
        ),
        (("--compute-default", "unset", "--compute-allowed", "any"), {"compute_default": None, "compute_allowed": []}),
        (("--sharing-default", "mps"), {"sharing_default": "mps"}),
        (("--sharing-allowed", "whole, share"), {"sharing_allowed": ["whole", "share"]}),
    ):
        assert gpupool("project", "set", "b", *arguments).returncode == 0
        assert pool.requests[-1][2] == sent


def test_sharing_mode_is_shown_and_set(pool: FakePool, gpupool: Any) -> None:
    pool.answers["POST /v1/nodes/gpu1/sharing"] = node_view(sharing_policy="mps")
    shown = gpupool("sharing", "gpu1")
    assert b"share" in shown.stdout
    assert gpupool("sharing", "gpu1", "mps", "--gpu", "1").returncode == 0
    assert pool.requests[-1][2] == {"mode": "mps", "gpu": 1}
    assert gpupool("sharing", "gpu1", "default").returncode == 0
    assert pool.requests[-1][2] == {"mode": None, "gpu": None}


def test_backup_schedule_is_changed_and_listed(pool: FakePool, gpupool: Any) -> None:
    copy = {"name": "pool-20261121T060000Z.db", "made_at": NOW, "size_bytes": 3 << 20, "state": "damaged"}
    answer = {
        "every_s": 21_600,
        "keep": 14,
        "folder": "/srv/b",
        "last_success_at": NOW,
        "last_error": "",
        "files": [copy],
    }
    pool.answers |= {"PATCH /v1/backups": answer, "GET /v1/backups": answer}
    for arguments, sent in (
        (("--every", "6h", "--keep", "14", "--to", "/srv/b"), {"every_s": 21_600, "keep": 14, "folder": "/srv/b"}),
        (("--every", "never"), {"every_s": None}),
        (("--keep", "3"), {"keep": 3}),
    ):
        assert gpupool("backup", *arguments).returncode == 0
        assert pool.requests[-1][2] == sent
    shown = gpupool("backup", "--list")
    assert pool.requests[-1][0] == "GET"
    for word in (b"6h00m, keep 14", b"/srv/b", b"3.0 MiB", b"damaged", b"pool-20261121T060000Z.db"):
        assert word in shown.stdout
    assert json.loads(gpupool("backup", "--list", "--json").stdout) == answer


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("copy.db", "--every", "6h"),
        ("copy.db", "--list"),
        ("--list", "--state-dir", "/tmp/none"),
        ("--every", "often"),
    ],
)
def test_backup_refuses_contradictory_options(pool: FakePool, gpupool: Any, words: tuple[str, ...]) -> None:
    before = len(pool.requests)
    assert gpupool("backup", *words).returncode in {2, 125}
    assert not [request for request in pool.requests[before:] if request[0] == "PATCH"]


def test_project_members_are_added_and_removed(pool: FakePool, gpupool: Any) -> None:
    pool.answers["PATCH /v1/projects/team-a"] = project_view()
    assert gpupool("project", "members", "team-a", "--add", "ben").stdout == b"ann\nben\n"
    assert pool.requests[-1][2] == {"members": ["ann", "ben"]}
    assert gpupool("project", "members", "team-a", "--remove", "ann").returncode == 125


def test_configured_project_is_stored_and_used(pool: FakePool, gpupool: Any) -> None:
    assert gpupool("config", "project", "team-a").returncode == 0
    assert gpupool("run", "--", "true").returncode == 0
    assert pool.submitted()["project"] == "team-a"
    assert b"Projects: team-a, default" in gpupool("config", "project", "team-x").stderr
    assert gpupool("config", "project", "none").returncode == 0


def test_tokens_show_their_secret_once_on_stdout(pool: FakePool, gpupool: Any) -> None:
    pool.answers["POST /v1/tokens"] = (201, token_view() | {"secret": "gpt_ab12_x"})
    pool.answers["DELETE /v1/tokens/ab12"] = (204, None)
    assert gpupool("token", "create", "--expires", "7d", "--role", "viewer").stdout == b"gpt_ab12_x\n"
    assert pool.requests[-1][2] == {"role": "viewer", "expires_in_s": 604800.0}
    assert gpupool("token", "revoke", "ab12").returncode == 0


def test_users_and_nodes_are_changed(pool: FakePool, gpupool: Any) -> None:
    pool.answers["PUT /v1/users/ann"] = {"name": "ann", "role": "manager", "uid": 1, "disabled": True}
    assert gpupool("user", "set", "ann", "--role", "manager", "--gpu-limit", "2", "--disable").returncode == 0
    assert pool.requests[-1][2] == {"role": "manager", "disabled": True, "gpu_limit_permille": 2000}
    assert gpupool("user", "set", "ann", "--email", "none").returncode == 0
    assert pool.requests[-1][2] == {"email": ""}
    pool.answers["POST /v1/nodes/gpu1/cordon"] = {"name": "gpu1", "state": "cordoned"}
    assert b"gpu1 is cordoned" in gpupool("cordon", "gpu1", "--reason", "new driver").stderr
    assert pool.requests[-1][2] == {"reason": "new driver"}
    pool.answers["POST /v1/nodes/gpu1/cordon"] = {"name": "gpu1", "state": "up"}
    assert b"GPU 2 of gpu1 is cordoned" in gpupool("node", "cordon", "gpu1", "--gpu", "2").stderr
    assert pool.requests[-1][2] == {"reason": "", "gpu": 2}
    pool.answers["POST /v1/nodes/gpu1/uncordon"] = {"name": "gpu1", "state": "up"}
    assert b"GPU 2 of gpu1 is uncordoned" in gpupool("uncordon", "gpu1", "--gpu", "2").stderr
    assert pool.requests[-1][2] == {"gpu": 2}


# Getting in


def test_attach_to_a_lease_is_refused(pool: FakePool, gpupool: Any) -> None:
    pool.answers["GET /v1/workloads/a"] = shown(detail_view("w1", {"kind": "lease"}))
    assert b"gpupool client --lease" in gpupool("attach", "a").stderr


def test_attach_to_ended_workload_shows_its_end(pool: FakePool, gpupool: Any) -> None:
    ended = detail_view("w1", state="failed", exit_status=4, replicas=[replica_view(reason="EXITED")])
    pool.answers["GET /v1/workloads/a"] = pool.answers["GET /v1/workloads/w1"] = shown(ended)
    assert gpupool("attach", "a").returncode == 4


def test_exec_runs_next_to_the_program(pool: FakePool, gpupool: Any) -> None:
    done = gpupool("exec", "train-1/2", "--", "sh", "-c", "echo in; exit 6")
    assert (done.stdout, done.returncode) == (b"in\n", 6)
    body = pool.submitted()
    assert (body["kind"], body["on"], body["on_index"]) == ("exec", "train-1", 2)


def test_bash_opens_a_shell_on_the_gpus(pool: FakePool, gpupool: Any) -> None:
    assert gpupool("bash", "train-1", input=b"echo $((6*7))\n").stdout == b"42\n"


def test_rate_limited_request_is_retried(gpupool: Any, pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = {"code": "RATE_LIMITED", "message": "Too many requests come from ann.", "hint": "Wait."}
    given, left = pool.answer, [2]

    def busy(method: str, target: str, body: Any) -> tuple[int, Any]:
        if target.startswith("/v1/nodes") and left[0]:
            left[0] -= 1
            return 429, {"error": refusal}
        return given(method, target, body)

    monkeypatch.setattr(pool, "answer", busy)
    assert gpupool("nodes").returncode == 0
    assert left == [0]
