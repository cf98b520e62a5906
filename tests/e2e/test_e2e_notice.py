"""Training that is preempted on a real pool saves, continues by itself, and computes the right result."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

from e2e_pool import RealPool, eventually

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "checkpoint.py"
STEPS = 1500  # fifteen seconds: the other job comes meanwhile, also on a busy machine


def output(pool: RealPool, name: str, attempt: int) -> str:
    with pool.client as client:
        return b"".join(chunk.data for chunk in client.logs(name, attempt=attempt)).decode()


def catches(pid: int | None, signum: signal.Signals) -> bool:
    """Return whether a program has installed its handler: before, the signal would end it."""
    if pid is None:
        return False
    found = re.search(r"SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return found is not None and bool(int(found[1], 16) >> (signum - 1) & 1)


def test_preempted_job_saves_resumes_and_has_right_result(pool: RealPool) -> None:
    pool("project", "create", "notices", "--min-runtime", "1s")
    what = [sys.executable, str(PROGRAM), "--steps", str(STEPS), "--step-time", "0.01"]
    where = ["--project", "notices", "-n", "2"]
    pool("submit", "long", *where, "--notice-signal", "USR1", "--grace", "1m", "--", *what)
    assert pool.becomes("long", "running")
    assert eventually(lambda: catches(pool.json("describe", "long")["replicas"][0]["pid"], signal.SIGUSR1))
    pool("submit", "urgent", *where, "--priority", "high", "--", "sleep", "1000")
    assert pool.becomes("urgent", "running")
    [row] = pool.json("describe", "long")["replicas"]
    assert row["interruptions"] == 1
    assert "priority 100" in row["message"], "who, and why"
    told = pool.json("why", "long")
    assert told["position"] == 1, "when it resumes"
    pool("stop", "urgent")
    assert pool.becomes("long", "succeeded")
    first, second = output(pool, "long", 1), output(pool, "long", 2)
    assert "saved after step" in first
    assert "PREEMPTED: " in first, "the notice was there when the signal came"
    saved = first.partition("saved after step ")[2].partition(";")[0]
    assert f"continuing after step {saved} (attempt 2)" in second
    assert f"total: {STEPS * (STEPS + 1) * (2 * STEPS + 1) // 6}" in second
    assert "PREEMPTED" in {event["reason"] for event in pool.json("events", "long")["events"]}


def test_idle_job_gets_warning_and_is_ended(pool: RealPool) -> None:
    script = "while sleep 0.05; do test -e $GPUPOOL_NOTICE_FILE && cat $GPUPOOL_NOTICE_FILE && exec sleep 60; done"
    pool("submit", "idler", "-g", "0.1", "--idle-timeout", "4s", "--", "sh", "-c", script)
    assert pool.becomes("idler", "stopped")
    assert eventually(lambda: "IDLE_WARNING" in output(pool, "idler", 1))
    assert pool.json("describe", "idler")["replicas"][0]["message"].startswith("idle for")


def test_preempted_job_is_killed_at_once_if_it_says_so(pool: RealPool) -> None:
    """Its grace period is longer than the test."""
    pool("project", "create", "killed", "--min-runtime", "1s")
    where = ["--project", "killed", "-n", "2"]
    stubborn = 'trap "" TERM; echo started; while :; do sleep 0.05; done'
    pool("submit", "stubborn", *where, "--grace", "1h", "--on-preempt", "kill", "--", "sh", "-c", stubborn)
    assert eventually(lambda: "started" in output(pool, "stubborn", 1))
    pool("submit", "soon", *where, "--priority", "high", "--", "sleep", "1000")
    assert pool.becomes("soon", "running")
    [row] = pool.json("describe", "stubborn")["replicas"]
    assert (row["interruptions"], row["state"]) == (1, "pending")
    assert "killed on preemption" in pool.text("describe", "stubborn")
    for name in ("soon", "stubborn"):
        pool("stop", name, "--force")
