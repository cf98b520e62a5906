"""Programs whose GPU memory moves to the memory of the node and back, with real processes on the simulated driver."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from e2e_pool import RealPool, eventually

from gpupool.node.host.native import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason="the native parts are not built")

# Stores numbers in GPU memory, then reads them back: all the time ("busy"), when a file of the step's name exists
# ("asked"), or while a kernel of 3.6 s is waited for again and again ("blocked").
PROGRAM = """
import os, sys, time
import numpy as np
from cuda.bindings import driver as d
def ok(result):
    assert result[0] == 0, result
    return result[1] if len(result) > 1 else None
ok(d.cuInit(0))
device = ok(d.cuDeviceGet(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(device))))
size = 64 << 20
address = ok(d.cuMemAlloc(size))
wanted, found = np.arange(size // 4, dtype=np.uint32), np.zeros(size // 4, np.uint32)
ok(d.cuMemcpyHtoD(address, wanted, size))
print("ready", flush=True)
for step in range(100000):
    while sys.argv[1] == "asked" and not os.path.exists(f"step{step}"):
        time.sleep(0.02)
    if sys.argv[1] == "blocked":
        kernel = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(b"any image\\0")), b"spin_3600ms"))
        ok(d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
        ok(d.cuCtxSynchronize())
    ok(d.cuMemcpyDtoH(found, address, size))
    print("step", step, bool((found == wanted).all()), flush=True)
    time.sleep(0.05)
"""
SUSPEND = ("--on-preempt", "suspend", "--no-files")


def start(pool: RealPool, name: str, how: str, *words: str) -> None:
    pool("submit", "--name", name, *SUSPEND, *words, "--", sys.executable, "-c", PROGRAM, how)
    assert eventually(lambda: "ready" in pool.text("logs", name), pause_s=0.2), pool.text("logs", name)


def steps(pool: RealPool, name: str) -> int:
    text = pool.text("logs", name)
    assert "False" not in text, text
    return text.count("True")


def reasons(pool: RealPool, name: str) -> list[str]:
    return [event["reason"] for event in pool.json("events", name)["events"]]


def pid_of(pool: RealPool, name: str) -> int:
    return int(pool.json("describe", name)["replicas"][0]["pid"])


@pytest.fixture
def pool(own_pool: RealPool) -> RealPool:
    own_pool("policy", "set", "--min-runtime", "1s")
    return own_pool


def test_preempted_program_continues_with_what_it_had_in_gpu_memory(pool: RealPool) -> None:
    start(pool, "train", "busy", "-p", "0.5")
    assert eventually(lambda: steps(pool, "train") > 0, pause_s=0.2)
    pid = pid_of(pool, "train")
    pool("submit", "--name", "urgent", "--no-files", "--priority", "high", "--", "sleep", "600")
    assert pool.becomes("urgent", "running")
    assert pool.state_of("train") == "running"
    assert "GPUS_SUSPENDED" in reasons(pool, "train")
    assert "suspended" in pool.text("why", "train")
    assert pool.free_permille() == [0]
    done = steps(pool, "train")
    time.sleep(1)
    assert steps(pool, "train") == done, "its calls of the driver wait"
    for child in ("agent", "control-plane"):
        pool.kill_child(child)
    pool("stop", "urgent", "--grace", "0")
    assert eventually(lambda: steps(pool, "train") > done + 3, pause_s=0.2)
    (row,) = pool.json("describe", "train")["replicas"]
    assert (row["pid"], row["attempt"], row["interruptions"]) == (pid, 1, 0)
    pool("stop", "train", "--grace", "0")
    assert pool.all_free()


def test_unused_session_lends_its_gpu_and_gets_it_back_on_use(pool: RealPool) -> None:
    words = ("--interactive", "--lazy", "--return-after", "1s", "-p", "0.5")
    start(pool, "session", "asked", *words)
    assert eventually(lambda: pool.free_permille() == [1000], pause_s=0.2)
    assert "suspended: holds no GPU until it uses CUDA again" in pool.text("ps")
    for child in ("agent", "control-plane"):
        pool.kill_child(child)
    (pool.work / "step0").touch()
    assert eventually(lambda: steps(pool, "session") == 1, pause_s=0.2)
    assert eventually(lambda: pool.free_permille() == [1000], pause_s=0.2)
    pool("submit", "--name", "other", "--no-files", "--", "sleep", "600")
    assert pool.becomes("other", "running")
    (pool.work / "step1").touch()
    assert eventually(lambda: "waiting for a GPU" in pool.text("ps"), pause_s=0.2)
    # A command in the session waits as well, and finds the session's own GPU.
    ask = "from cuda.bindings import driver as d; print(int(d.cuInit(0)[0]), d.cuDeviceGetCount()[1])"
    command = pool.begin("exec", "session", "--", sys.executable, "-c", ask)
    time.sleep(1)
    assert command.poll() is None
    assert steps(pool, "session") == 1
    pool("stop", "other", "--grace", "0")
    assert eventually(lambda: steps(pool, "session") == 2, pause_s=0.2)
    out, _ = command.communicate(timeout=60)
    assert out.decode().split() == ["0", "1"]
    pool("stop", "session", "--grace", "0")
    assert pool.all_free()


def test_end_of_the_suspended_processes_ends_the_wait_for_their_gpu(pool: RealPool) -> None:
    """Its shell lives on without a GPU; the next process gets one as in any lazy session."""
    script = 'for name in one two; do while ! test -e $name; do sleep 0.05; done; "$@"; done; sleep 600'
    words = ("--interactive", "--lazy", "--return-after", "1s", "-p", "0.5", *SUSPEND)
    command = ("sh", "-c", script, "sh", sys.executable, "-c", PROGRAM, "asked")
    pool("submit", "--name", "shell", *words, "--", *command)
    assert pool.becomes("shell", "running")
    (pool.work / "one").touch()
    assert eventually(lambda: "GPUS_SUSPENDED" in reasons(pool, "shell"), pause_s=0.2), pool.text("logs", "shell")
    assert "suspended" in pool.text("ps")
    pid = pid_of(pool, "shell")
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    assert eventually(
        lambda: "holds no GPU until it uses CUDA" in pool.text("ps") and "suspended" not in pool.text("ps"), pause_s=0.2
    )
    (pool.work / "two").touch()
    assert eventually(lambda: pool.text("logs", "shell").count("ready") == 2, pause_s=0.2)
    pool("stop", "shell", "--grace", "0")
    assert pool.all_free()


def test_program_inside_a_long_call_is_stopped_instead(pool: RealPool) -> None:
    start(pool, "train", "blocked", "-p", "0.5", "--grace", "1s")
    pool("submit", "--name", "urgent", "--no-files", "--priority", "high", "--", "sleep", "600")
    assert pool.becomes("urgent", "running")
    (row,) = pool.json("describe", "train")["replicas"]
    assert (row["state"], row["interruptions"]) == ("pending", 1)
    assert "cannot be suspended" in row["message"]
    assert "did not end in time" in row["message"]
    pool("stop", "urgent", "--grace", "0")
    assert eventually(lambda: pool.json("describe", "train")["replicas"][0]["attempt"] == 2, pause_s=0.2)


def test_kill_of_the_agent_while_it_waits_for_a_call(pool: RealPool) -> None:
    """The suspension begins again or is undone; in both cases the urgent job runs and the program continues."""
    start(pool, "train", "blocked", "-p", "0.5", "--grace", "20s")
    pool("submit", "--name", "urgent", "--no-files", "--priority", "high", "--", "sleep", "600")
    assert eventually(lambda: "PREEMPTED" in reasons(pool, "train"), pause_s=0.1)
    for _ in range(2):
        pool.kill_child("agent")
        time.sleep(0.4)
    assert pool.becomes("urgent", "running")
    before = steps(pool, "train")
    pool("stop", "urgent", "--grace", "0")
    assert eventually(lambda: steps(pool, "train") > before, pause_s=0.2)
