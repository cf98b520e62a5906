"""The reason of an end: each way to end a job, on each surface that shows it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e_pool import PATIENCE_S, RealPool, eventually, fresh_pool

from gpupool.client import JobFailed

sys.path.insert(0, str(Path(__file__).parent.parent / "messaging"))

from mail_server import hook_server, mail_server

SLICE = ("-g", "0.1")
ALLOCATE = "x = bytearray(512 << 20); x[::4096] = b'1' * len(x[::4096]); import time; time.sleep(60)"


@dataclass(frozen=True)
class Way:
    """One way to end: what is submitted, what ends it, and the record that is expected."""

    code: str
    sentence: str
    decided_by: str
    submit: tuple[str, ...]
    end: Callable[[RealPool, str], None] | None = None
    status: int | None = None


def stop(pool: RealPool, name: str) -> None:
    assert pool.becomes(name, "running")
    pool("stop", name)


def kill_shepherd(pool: RealPool, name: str) -> None:
    assert pool.becomes(name, "running")
    with pool.client as client:
        program = client.detail(name).replicas[0].pid
    assert program is not None
    stat = Path(f"/proc/{program}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)


def job(*command: str, options: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return a batch job that is not retried."""
    return (*SLICE, "--restart", "never", *options, "--", *command)


WAYS = {
    "exit": Way("EXITED", "exited with status 3 after", "program", job("sh", "-c", "exit 3"), status=3),
    "signal": Way("EXITED", "killed by signal 11 (SIGSEGV)", "program", job("sh", "-c", "kill -SEGV $$"), status=139),
    "max-time": Way(
        "TIME_LIMIT", "reached its time limit of 1s", "pool", job("sleep", "60", options=("--max-time", "1s"))
    ),
    "idle": Way(
        "IDLE_LIMIT", "the limit is 2s", "pool", job("sleep", "60", options=("--idle-timeout", "2s", "--grace", "1s"))
    ),
    "memory": Way(
        "MEMORY_LIMIT",
        "exceeded its limit of 64 MiB of host memory",
        "pool",
        job(sys.executable, "-c", ALLOCATE, options=("--memory", "64M")),
        status=137,
    ),
    "stopped": Way("STOPPED_BY_USER", "stopped by {me}", "user", job("sleep", "60"), end=stop),
    "shepherd-lost": Way("SHEPHERD_LOST", "shepherd", "node", job("sleep", "60"), end=kill_shepherd),
    "no-program": Way(
        "START_FAILED", "No such program: no-such-program", "program", job("no-such-program"), status=127
    ),
    "environment": Way(
        "ENVIRONMENT_FAILED",
        "The environment of requirements.txt could not be created",
        "program",
        job("true", options=("--lock", "requirements.txt")),
    ),
    "dependency": Way(
        "DEPENDENCY_FAILED", "it depends on exit, which has failed", "pool", job("true", options=("--after", "exit"))
    ),
    "no-gpu": Way(
        "WAIT_EXPIRED",
        "no GPU was free for it within",
        "pool",
        ("-n", "2", "--sharing", "whole", "--restart", "never", "--wait", "1s", "--", "true"),
    ),
    "same-failure": Way(
        "REPEATED_FAILURE",
        "exited with status 4; 3 times in a row within 5 s of its start",
        "program",
        (*SLICE, "--", "sh", "-c", "exit 4"),
        status=4,
    ),
    "all-retries": Way(
        "BACKOFF_EXHAUSTED",
        "exited with status 5; all 1 retries are used",
        "program",
        (*SLICE, "--backoff-limit", "1", "--", "sh", "-c", "exit 5"),
        status=5,
    ),
}


@pytest.fixture(scope="module")
def ended() -> Iterator[RealPool]:
    """A pool in which each way has ended one job, named after the way."""
    with fresh_pool("2xT4") as pool:
        (pool.work / "requirements.txt").write_text("no-such-package==1.0 --hash=sha256:00\n")
        pool("submit", "busy", "-n", "1", "--", "sleep", "600")
        for name, way in WAYS.items():
            pool("submit", name, *way.submit)
        for name, way in WAYS.items():
            if way.end is not None:
                way.end(pool, name)
        pool("wait", *WAYS, ok=False, timeout=PATIENCE_S)
        yield pool


@pytest.mark.parametrize("name", WAYS)
def test_each_surface_shows_the_same_reason(ended: RealPool, name: str) -> None:
    way, me = WAYS[name], ended.json("whoami")["user"]
    found = ended.json("describe", name)
    ending = found["ending"]
    if name == "memory" and ending["code"] != way.code:
        pytest.skip("this machine limits no memory: " + "; ".join(found["replicas"][0]["notes"]))
    sentence, line = ending["sentence"], f"{ending['sentence']} [{way.code}]"
    assert way.sentence.format(me=me) in sentence
    assert (ending["code"], ending["decided_by"]) == (way.code, way.decided_by)
    assert ending["user"] == (me if way.decided_by == "user" else "")
    assert ending["exit_status"] == way.status or way.status is None
    assert bool(ending["remedy"]) is (way.decided_by != "user")
    assert found["replicas"][0]["ending"] == ending

    (row,) = [
        row
        for row in ended.text("ps", "--all", env={**ended.env, "COLUMNS": "400"}).splitlines()
        if f"{name} " in row[:20]
    ]
    assert line in row
    why = ended.text("why", name)
    assert line in why.replace(". [", " [")
    assert ending["remedy"] in why
    described = ended.text("describe", name)
    assert line in described
    assert ending["remedy"] in described
    waited = ended("wait", name, ok=False)
    assert line in waited.stderr.decode()
    assert waited.returncode == (way.status or found["exit_status"] or 1)
    if found["replicas"][0]["attempt"]:
        footer = ended("logs", "-f", name).stderr.decode()
        assert line in footer
        assert ending["remedy"] in footer
    with ended.client as client:
        failed = client.get(name)
        with pytest.raises(JobFailed, match=way.code) as caught:
            failed.result(timeout=PATIENCE_S)
        assert sentence in str(caught.value)
        assert ending["remedy"] in str(caught.value)
        assert caught.value.ending is not None
        assert caught.value.ending.code == way.code


def test_immediate_failure_with_the_same_status_is_tried_three_times(ended: RealPool) -> None:
    assert ended.json("describe", "same-failure")["replicas"][0]["attempt"] == 3
    assert ended.json("describe", "all-retries")["replicas"][0]["attempt"] == 2


def test_next_attempt_is_shown_while_it_is_awaited(pool: RealPool) -> None:
    pool("submit", "again", *SLICE, "--backoff-limit", "6", "--", "sh", "-c", "exit 4")
    with pool.client as client:
        assert eventually(lambda: client.detail("again").replicas[0].failures >= 3)
        retrying = client.detail("again").retrying
    assert retrying is None or retrying.attempts == 7
    assert eventually(lambda: "attempt 5 of 7" in pool.text("ps"))
    assert "attempt 5 of 7, next in" in pool.text("describe", "again")


@pytest.mark.parametrize(
    ("options", "command", "code", "sentence", "status"),
    [
        (("--idle-timeout", "2s"), ("sleep", "60"), "IDLE_LIMIT", "the limit is 2s", 143),
        (("--max-time", "1s"), ("sleep", "60"), "TIME_LIMIT", "reached its time limit of 1s", 143),
        ((), ("sh", "-c", "kill -KILL $$"), "EXITED", "killed by signal 9 (SIGKILL)", 137),
        ((), ("no-such-program",), "START_FAILED", "No such program: no-such-program", 127),
    ],
)
def test_run_prints_the_reason(
    pool: RealPool, options: tuple[str, ...], command: tuple[str, ...], code: str, sentence: str, status: int
) -> None:
    done = pool("run", *SLICE, *options, "--", *command, ok=False)
    assert done.returncode == status
    said = done.stderr.decode()
    assert f"[{code}]" in said
    assert sentence in said


def test_attached_terminals_show_warnings_before_the_end(pool: RealPool) -> None:
    idle = pool.begin("run", *SLICE, "--idle-timeout", "4s", "--", "sleep", "60")
    pool("submit", "limited", *job("sleep", "60", options=("--max-time", "8s")))
    timed = pool.begin("attach", "--no-stdin", "limited")
    pool("request-gpus", "-n", "1", "-p", "0.1", "--name", "brief", "--lifetime", "10s")
    leased = pool.begin("client", "--lease", "brief", "--", "sleep", "60")
    for process, warning, end in (
        (idle, "GPUs are released after 4s [IDLE_WARNING]", "[IDLE_LIMIT]"),
        (timed, "its time limit of 8s ends it in", "reached its time limit of 8s [TIME_LIMIT]"),
        (leased, "the lease ends in", "the lease that it used has ended"),
    ):
        said = process.communicate(timeout=PATIENCE_S)[1].decode()
        assert "gpupool: warning: " in said
        assert warning in said
        assert end in said
        assert said.index(warning) < said.index(end)


def test_run_prints_who_stopped_it(pool: RealPool) -> None:
    runs = pool.begin("run", *SLICE, "--name", "mine", "--", "sleep", "60")
    assert eventually(lambda: "mine" in pool.text("ps"))
    assert pool.becomes("mine", "running")
    pool("stop", "mine")
    _, said = runs.communicate(timeout=PATIENCE_S)
    assert f"stopped by {pool.json('whoami')['user']} [STOPPED_BY_USER]" in said.decode()


def test_program_that_exits_by_itself_gets_no_line(pool: RealPool) -> None:
    assert pool("run", *SLICE, "--", "sh", "-c", "exit 3", ok=False).stderr.decode().count("gpupool:") == 0


def test_program_on_a_lease_names_the_end_of_the_lease(pool: RealPool) -> None:
    pool("request-gpus", "-n", "1", "-p", "0.1", "--name", "mylease")
    runs = pool.begin("client", "--lease", "mylease", "--", "sleep", "60")
    assert eventually(
        lambda: any(w["kind"] == "exec" and w["state"] == "running" for w in pool.json("ps")["workloads"])
    )
    pool("stop", "mylease")
    _, said = runs.communicate(timeout=PATIENCE_S)
    me = pool.json("whoami")["user"]
    assert f"the lease that it used has ended: released by {me} [LEASE_ENDED]" in said.decode()


def test_absent_user_gets_the_reason_by_mail_and_webhook(new_pool: RealPool) -> None:
    pool, me = new_pool, new_pool.json("whoami")["user"]
    with mail_server() as mail, hook_server() as hook:
        pool("user", "set", me, "--email", "ada@example.org")
        mailing = ["--smtp-host", "127.0.0.1", "--smtp-port", str(mail.port), "--smtp-security", "none"]
        pool("warnings", "set", *mailing, "--sender", "pool@example.org", "--webhook", hook.url)
        pool("submit", "fine", *SLICE, "--", "true")
        pool("submit", "broken", *job("sh", "-c", "exit 3"))
        assert eventually(lambda: bool(mail.mails and hook.posts))
        (told,) = hook.documents[0]["warnings"]
        assert (told["kind"], told["name"], told["code"]) == ("ended", "broken", "EXITED")
        assert told["remedy"] == "see its output: gpupool logs broken"
        ((_, letter),) = mail.mails
        assert letter["Subject"] == "gpupool: broken has ended"
        assert "exited with status 3" in letter.get_payload()
        assert "gpupool logs broken" in letter.get_payload()
