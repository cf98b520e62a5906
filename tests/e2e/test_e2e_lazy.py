"""Lazy sessions with real processes: the first use of CUDA waits in the share library until the pool has a GPU."""

from __future__ import annotations

import sys
import time

import pytest
from e2e_pool import RealPool, eventually

from gpupool.node.host.native import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason="the native parts are not built")

# Prints a line for each step; uses CUDA when the file of its name exists.
SESSION = """
import os, sys, time
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print("asks", flush=True)
from cuda.bindings import driver as d
assert d.cuInit(0)[0] == 0
print("devices", d.cuDeviceGetCount()[1], flush=True)
assert d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(0)[1])[1])[0] == 0
print("memory", d.cuMemGetInfo()[2] >> 20, flush=True)
time.sleep(600)
"""


def start(pool: RealPool, name: str, *words: str) -> None:
    program = (sys.executable, "-c", SESSION, f"{name}.go")
    pool("submit", "--name", name, "--interactive", "--lazy", "--no-files", *words, "--", *program)
    assert pool.becomes(name, "running")


def use_cuda(pool: RealPool, name: str) -> None:
    (pool.work / f"{name}.go").touch()
    assert eventually(lambda: "asks" in pool.text("logs", name), pause_s=0.2)


def test_session_waits_for_its_gpu_and_survives_kills_in_each_state(own_pool: RealPool) -> None:
    pool = own_pool
    pool("submit", "--name", "full", "--no-files", "--", "sleep", "600")
    assert pool.becomes("full", "running")
    start(pool, "session", "-p", "0.5")
    assert "holds no GPU until it uses CUDA" in pool.text("ps")
    assert "Lazy: " in pool.text("describe", "session")
    for child in ("agent", "control-plane"):
        pool.kill_child(child)
    use_cuda(pool, "session")
    assert eventually(lambda: "waiting for a GPU" in pool.text("ps"), pause_s=0.2)
    assert "WAITING_FOR_GPU" in pool.text("why", "session")
    for child in ("agent", "control-plane"):
        pool.kill_child(child)
    assert "waiting for a GPU" in pool.text("ps")
    pool("stop", "full")
    assert eventually(lambda: "memory 8192" in pool.text("logs", "session"), pause_s=0.2), pool.text("logs", "session")
    assert "devices 1" in pool.text("logs", "session")
    for child in ("agent", "control-plane"):
        pool.kill_child(child)
    assert pool.free_permille() == [500]
    assert pool.state_of("session") == "running"
    pool("stop", "session", "--grace", "0")
    assert pool.all_free()


def test_stop_ends_a_session_that_waits(own_pool: RealPool) -> None:
    pool = own_pool
    start(pool, "first", "-n", "1")
    start(pool, "second", "-n", "1")
    use_cuda(pool, "first")
    assert eventually(lambda: "memory 16" in pool.text("logs", "first"), pause_s=0.2)
    assert pool.free_permille() == [0]
    use_cuda(pool, "second")
    assert eventually(lambda: "waiting for a GPU" in pool.text("describe", "second"), pause_s=0.2)
    pool("stop", "second", "--grace", "1")
    assert pool.becomes("second", "stopped")
    pool("stop", "first", "--grace", "0")
    assert pool.all_free()


def test_command_in_a_lazy_session_uses_its_gpu(pool: RealPool) -> None:
    start(pool, "shell", "-p", "0.25")
    ask = "from cuda.bindings import driver as d; print(int(d.cuInit(0)[0]), d.cuDeviceGetCount()[1])"
    assert pool.text("exec", "shell", "--", sys.executable, "-c", ask).strip().endswith("0 1")
    assert sorted(pool.free_permille()) == [750, 1000]
    use_cuda(pool, "shell")
    assert eventually(lambda: "memory 4096" in pool.text("logs", "shell"), pause_s=0.2)


def test_run_says_that_it_waits(own_pool: RealPool) -> None:
    pool = own_pool
    pool("submit", "--name", "full", "--no-files", "--", "sleep", "600")
    assert pool.becomes("full", "running")
    ask = "from cuda.bindings import driver as d; print(int(d.cuInit(0)[0]), d.cuDeviceGetCount()[1])"
    running = pool.begin("run", "--lazy", "-p", "0.5", "--no-files", "--", sys.executable, "-c", ask)
    assert eventually(lambda: "waiting for a GPU" in pool.text("ps"), pause_s=0.2)
    time.sleep(2)
    pool("stop", "full")
    out, err = running.communicate(timeout=60)
    assert out.decode().split() == ["0", "1"]
    assert "gpupool: waiting for a GPU" in err.decode()
    assert running.returncode == 0
    assert pool.all_free()


# For each name a process that uses CUDA, from when the file of the name exists until it is gone.
SHELL = """
import os, subprocess, sys, time
use = "import os, sys, time; from cuda.bindings import driver as d; assert d.cuInit(0)[0] == 0; "
use += "print('devices', d.cuDeviceGetCount()[1], flush=True); "
use += "[time.sleep(0.05) for _ in iter(lambda: os.path.exists(sys.argv[1]), False)]"
for name in sys.argv[1:]:
    while not os.path.exists(name):
        time.sleep(0.05)
    subprocess.run([sys.executable, "-c", use, name], check=True)
time.sleep(600)
"""


def test_session_returns_its_gpus_between_its_uses_of_cuda(own_pool: RealPool) -> None:
    """Its process lives on; the next use waits again, for as long as another job has the GPU."""
    pool = own_pool
    words = ("--interactive", "--lazy", "--return-after", "1s", "--no-files", "-p", "0.5")
    pool("submit", "--name", "session", *words, "--", sys.executable, "-c", SHELL, "one", "two")
    assert pool.becomes("session", "running")
    (pool.work / "one").touch()
    assert eventually(lambda: "devices 1" in pool.text("logs", "session"), pause_s=0.2)
    assert pool.free_permille() == [500]
    for child in ("agent", "control-plane"):
        pool.kill_child(child)
    (pool.work / "one").unlink()
    assert eventually(lambda: pool.free_permille() == [1000], pause_s=0.2)
    assert "GPUS_RETURNED" in [event["reason"] for event in pool.json("events", "session")["events"]]
    assert "holds no GPU until it uses CUDA" in pool.text("ps")
    assert pool.state_of("session") == "running"
    pid = pool.json("describe", "session")["replicas"][0]["pid"]
    pool("submit", "--name", "full", "--no-files", "--", "sleep", "600")
    assert pool.becomes("full", "running")
    (pool.work / "two").touch()
    assert eventually(lambda: "waiting for a GPU" in pool.text("ps"), pause_s=0.2)
    assert pool.text("logs", "session").count("devices 1") == 1
    pool("stop", "full")
    assert eventually(lambda: pool.text("logs", "session").count("devices 1") == 2, pause_s=0.2)
    assert pool.json("describe", "session")["replicas"][0]["pid"] == pid
    for child in ("agent", "control-plane"):
        pool.kill_child(child)
    (pool.work / "two").unlink()
    assert eventually(lambda: pool.free_permille() == [1000], pause_s=0.2)
    pool("stop", "session", "--grace", "0")
    assert pool.all_free()


def test_session_keeps_its_gpus_while_a_process_may_use_them(pool: RealPool) -> None:
    start(pool, "keeps", "-p", "0.5", "--return-after", "0.5s")
    use_cuda(pool, "keeps")
    assert eventually(lambda: "memory" in pool.text("logs", "keeps"), pause_s=0.2)
    time.sleep(3)
    assert sum(pool.free_permille()) == 1500
    assert "GPUS_RETURNED" not in [event["reason"] for event in pool.json("events", "keeps")["events"]]
