"""S5 and everything one does with a submitted job."""

from __future__ import annotations

import json
import os
import re
import time

import pytest
from e2e_pool import PATIENCE_S, RealPool, Terminal, alive, eventually, walk


def test_job_file_equals_options(pool: RealPool) -> None:
    (pool.work / "job.yml").write_text(
        "name: from-file\ncommand: [sh, -c, 'echo $WHO {x}']\nenv: {WHO: me}\n"
        "gpus: {fraction: 0.1}\nsweep: {grid: {x: [1, 2]}}\n"
    )
    checked = pool("submit", "-f", "job.yml", "--dry-run")
    assert b"from-file" in checked.stdout + checked.stderr
    pool("submit", "-f", "job.yml")
    pool("wait", "from-file")
    assert [pool.text("logs", f"from-file/{i}") for i in (0, 1)] == ["me 1\n", "me 2\n"]


@pytest.mark.parametrize(
    "content",
    [
        b"command: [true",
        b"\xff\xfe\x00",
        b"a: &a [*a]",
        b"command: [x]\nnonsense: 1\n",
        b"",
        b"[]",
        b"!!python/object:os.system {}",
    ],
)
def test_broken_job_file_is_reported_in_one_sentence(pool: RealPool, content: bytes) -> None:
    (pool.work / "broken.yml").write_bytes(content)
    done = pool("submit", "-f", "broken.yml", ok=False)
    assert done.returncode in {2, 125}
    assert b"broken.yml" in done.stderr or b"[" in done.stderr


def test_job_file_of_100_mb_is_refused_at_once(pool: RealPool) -> None:
    path = pool.work / "huge.yml"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    done = pool("submit", "-f", "huge.yml", ok=False)
    path.unlink()
    assert b"TOO_LARGE" in done.stderr


def test_logs_support_follow_tail_since_and_timestamps(pool: RealPool) -> None:
    gate = pool.work / "log-gate"
    script = f"seq 1 100; echo problem >&2; while ! test -e {gate}; do sleep 0.1; done; echo end"
    pool("submit", "talker", "-g", "0.1", "--", "sh", "-c", script)
    assert pool.becomes("talker", "running")
    assert eventually(lambda: b"problem" in pool("logs", "talker").stderr)
    assert eventually(lambda: pool("logs", "talker").stdout.endswith(b"100\n")), "the other stream"
    follower = pool.begin("logs", "-f", "talker")
    assert pool.text("logs", "--tail", "1", "talker", ok=True) in {"", "100\n"}
    assert pool.text("logs", "--tail", "3", "talker").splitlines()[-1] == "100"
    assert pool.text("logs", "--since", "1h", "talker").startswith("1\n2\n")
    first = pool.text("logs", "--timestamps", "talker").splitlines()[0]
    assert re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d", first)
    assert first.endswith("1")
    gate.touch()
    out, err = follower.communicate(timeout=PATIENCE_S)
    assert out.decode().splitlines() == [*map(str, range(1, 101)), "end"]
    assert b"problem" in err


def test_logs_select_lines(pool: RealPool) -> None:
    script = "seq 1 20; echo 'ValueError: bad' >&2; sleep 0.2; seq 21 40; printf '\\033[31mred 7\\033[0m'; exit 3"
    pool("submit", "seeker", "-g", "0.1", "--restart", "never", "--", "sh", "-c", script)
    pool("wait", "seeker", ok=False)
    assert pool.text("logs", "seeker", "--grep", "^1.$") == "".join(f"{i}\n" for i in range(10, 20))
    assert pool.text("logs", "seeker", "--grep", "RED", "-i") == "\x1b[31mred 7\x1b[0m\n"
    errors = pool("logs", "seeker", "--errors")
    assert errors.stderr == b"ValueError: bad\n"
    assert len(errors.stdout.split()) == 6
    assert b"ValueError" in pool("logs", "seeker", "--errors", "-C", "0", "--timestamps").stderr
    assert pool("logs", "seeker", "--grep", "nowhere", ok=False).returncode == 1
    assert b"is not a regular expression" in pool("logs", "seeker", "--grep", "(", ok=False).stderr
    assert b"--json" in pool("logs", "seeker", "--errors", "--json", ok=False).stderr


def test_logs_on_a_terminal_keep_colours_and_end_with_the_reason(pool: RealPool) -> None:
    script = "printf '\\033[31mred\\033[0m\\n'; exit 3"
    pool("submit", "painter", "-g", "0.1", "--restart", "never", "--", "sh", "-c", script)
    pool("wait", "painter", ok=False)
    terminal = Terminal(pool, "logs", "painter")
    assert terminal.wait() == 0
    assert b"\x1b[31mred\x1b[0m" in terminal.seen
    assert b"gpupool: exited with status 3 after" in terminal.seen
    assert b"[EXITED]" in terminal.seen


def test_logs_keep_every_byte(pool: RealPool) -> None:
    data = bytes(range(256)) * 500
    (pool.work / "bytes").write_bytes(data)
    pool("submit", "binary", "-g", "0.1", "--", "cat", "bytes")
    pool("wait", "binary")
    assert pool("logs", "binary").stdout == data


def test_log_is_limited_and_program_continues(pool: RealPool) -> None:
    pool(
        "submit",
        "flood",
        "-g",
        "0.1",
        "--log-limit",
        "1M",
        "--",
        "sh",
        "-c",
        "yes 0123456789 | head -c 9000000; echo; echo end",
    )
    pool("wait", "flood")
    out = pool("logs", "flood").stdout
    assert out.endswith(b"end\n")
    assert len(out) < 3_000_000


def test_attach_exec_and_shell_work(pool: RealPool) -> None:
    script = "echo begun; while read line; do echo heard $line; test $line = stop && exit 6; done"
    pool("submit", "session", "-g", "0.1", "--interactive", "--tty", "--", "sh", "-c", script, ok=False)
    assert pool.becomes("session", "running")
    terminal = Terminal(pool, "attach", "session")
    try:
        terminal.send(b"hello\r")
        terminal.expect(b"heard hello")
        done = pool("exec", "session", "--", "sh", "-c", "echo beside; exit 4", ok=False)
        assert (done.stdout, done.returncode) == (b"beside\n", 4)
        terminal.send(b"stop\r")
        terminal.expect(b"heard stop")
        assert terminal.wait() == 6
    finally:
        terminal.close()


def test_suspend_and_resume_work(pool: RealPool) -> None:
    pool("submit", "sleeper", "-g", "0.5", "--grace", "1s", "--", "sleep", "1000")
    assert pool.becomes("sleeper", "running")
    suspended = pool("suspend", "sleeper").stderr
    assert b"sleeper is stopping; it is suspended once" in suspended or b"sleeper is suspended" in suspended
    assert b"running" not in suspended
    assert pool.becomes("sleeper", "suspended")
    assert pool.all_free()
    pool("resume", "sleeper")
    assert pool.becomes("sleeper", "running")


def test_restart_keeps_slice_while_others_wait(pool: RealPool) -> None:
    show = 'echo "$GPUPOOL_ATTEMPT $CUDA_VISIBLE_DEVICES"; sleep 1000'
    pool("submit", "kernel", "-g", "0.7", "--", "sh", "-c", show)
    assert pool.becomes("kernel", "running")
    assert eventually(lambda: len(pool.text("logs", "kernel").split()) == 2)
    pool("submit", "next", "-g", "2", "--", "sleep", "1000")
    shell = pool.begin("exec", "kernel", "--", "sleep", "1000")
    assert eventually(lambda: len(pool.json("ps")["workloads"]) == 3)
    assert b"kernel restarts on the same GPUs" in pool("restart", "kernel").stderr
    assert eventually(lambda: len(pool.text("logs", "kernel", "--attempt", "2", ok=False).split()) == 2)
    first, second = (pool.text("logs", "kernel", "--attempt", n).split() for n in "12")
    assert (first[0], second[0], second[1]) == ("1", "2", first[1])
    shell.communicate(timeout=PATIENCE_S)
    assert shell.returncode not in {0, None}, "other programs on the GPUs end"
    refused = pool("restart", "next", ok=False)
    assert b"WRONG_STATE" in refused.stderr
    assert b"it is queued" in refused.stderr
    pool("stop", "--force", "kernel")
    assert pool.becomes("next", "running")


def test_stop_reports_its_result(pool: RealPool) -> None:
    pool("submit", "done", "-g", "0.1", "--wait-finished", "--", "true")
    pool("submit", "lasting", "-g", "0.1", "--grace", "1s", "--", "sleep", "1000")
    assert pool.becomes("lasting", "running")
    assert b"done had already ended: succeeded" in pool("stop", "done").stderr
    stopped = pool("stop", "--all", "--yes").stderr
    assert b"lasting is stop" in stopped, "the name, not the id"
    assert pool.becomes("lasting", "stopped")


def test_why_names_the_rule_that_ended_a_workload(pool: RealPool) -> None:
    pool("submit", "fails", "-g", "0.1", "--restart", "never", "--", "sh", "-c", "exit 4")
    pool("submit", "after-it", "-g", "0.1", "--after", "fails", "--", "true")
    assert pool.becomes("after-it", "failed")
    why = pool.text("why", "after-it")
    assert "DEPENDENCY_FAILED" in why
    assert "fails" in why.replace("after-it has ended: failed", "")


def test_program_that_ignores_sigterm_is_killed_after_grace_period(pool: RealPool) -> None:
    mark = pool.work / "stubborn"
    pool(
        "submit",
        "stubborn",
        "-g",
        "0.1",
        "--",
        "sh",
        "-c",
        f"trap '' TERM; echo $$ > {mark}; while :; do sleep 0.1; done",
    )
    assert eventually(lambda: mark.exists() and mark.read_text().strip())
    pid = int(mark.read_text())
    began = time.monotonic()
    pool("stop", "--grace", "1s", "stubborn")
    assert pool.becomes("stubborn", "stopped")
    assert time.monotonic() - began >= 1
    assert not alive(pid)
    assert pool.all_free()


def test_delete_removes_workload_and_output(pool: RealPool) -> None:
    pool("submit", "to-delete", "-g", "0.1", "--", "echo", "x")
    pool("wait", "to-delete")
    with pool.client as client:
        key = client.get("to-delete").id
    assert any(path.name.startswith(key) for path in walk(pool.state))
    pool("delete", "-y", "to-delete")
    assert pool("describe", "to-delete", ok=False).returncode != 0
    assert "to-delete" not in pool.text("ps", "-a")
    assert eventually(lambda: not [p for p in walk(pool.state) if p.name.startswith(f"{key}.0.1") and p.is_dir()])


def test_wait_returns_the_worst_status(pool: RealPool) -> None:
    pool("submit", "good", "-g", "0.1", "--", "true")
    pool("submit", "bad", "-g", "0.1", "--restart", "never", "--", "sh", "-c", "exit 9")
    assert pool("wait", "good", ok=False).returncode == 0
    assert pool("wait", "good", "bad", ok=False).returncode != 0


def test_every_list_supports_json(pool: RealPool) -> None:
    pool("submit", "seen", "-g", "0.1", "-l", "team=a", "--", "sleep", "1000")
    assert pool.becomes("seen", "running")
    assert [w["name"] for w in pool.json("ps")["workloads"]] == ["seen"]
    assert [w["name"] for w in json.loads(pool("ps", "-l", "team=a", "--json").stdout)["workloads"]] == ["seen"]
    assert json.loads(pool("ps", "-l", "team=b", "--json").stdout)["workloads"] == []
    assert pool.json("describe", "seen")["state"] == "running"
    assert [e["reason"] for e in pool.json("events", "seen")["events"]][:3] == ["SUBMITTED", "GRANTED", "STARTED"]
    for words in (["nodes"], ["list_gpus"], ["usage"], ["status"], ["whoami"], ["project", "list"], ["user", "list"]):
        assert isinstance(pool.json(*words), dict), words


def test_every_output_marks_emulated_gpus(pool: RealPool) -> None:
    for words in (["ps"], ["status"], ["list_gpus"], ["smi"], ["nodes"]):
        done = pool(*words)
        assert b"emulated" in (done.stdout + done.stderr).lower(), words


def test_unknown_and_used_names_are_refused(pool: RealPool) -> None:
    assert b"UNKNOWN_WORKLOAD" in pool("logs", "nothing", ok=False).stderr
    pool("submit", "twice", "-g", "0.1", "--", "sleep", "1000")
    assert b"NAME_TAKEN" in pool("submit", "twice", "-g", "0.1", "--", "true", ok=False).stderr


def test_terminal_handles_ctrl_c_and_environment(pool: RealPool) -> None:
    done = pool("run", "-q", "-p", "0.1", "--", "sh", "-c", "env", env={**pool.env, "GPUPOOL_TOKEN": "secret"})
    assert b"GPUPOOL_TOKEN" not in done.stdout


def test_files_have_umask_and_owner_of_caller(pool: RealPool) -> None:
    path = pool.work / "made"
    pool("run", "-q", "-p", "0.1", "--", "touch", str(path), preexec_fn=lambda: os.umask(0o027))
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.stat().st_uid == os.geteuid()
