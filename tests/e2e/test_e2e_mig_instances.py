"""MIG instances on demand, with a real agent and control plane on a simulated card in MIG mode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from e2e_pool import RealPool, eventually, fresh_pool

EMPTY = "A100-80GB[mig]"
ALLOW, FORBID = "mig=on-demand", "mig-"
# What the CUDA driver says: the number of devices and the memory of the first.
CUDA = (
    "import ctypes; c = ctypes.CDLL('libcuda.so.1'); n, size = ctypes.c_int(), ctypes.c_size_t();"
    "assert c.cuInit(0) == 0; c.cuDeviceGetCount(ctypes.byref(n));"
    "assert c.cuDeviceTotalMem_v2(ctypes.byref(size), 0) == 0; print(n.value, size.value >> 30)"
)


def allow(pool: RealPool, label: str = ALLOW) -> None:
    [node] = pool.json("nodes")["nodes"]
    pool("node", "label", node["name"], label)


def submit(pool: RealPool, name: str, profile: str, *command: str) -> None:
    pool("submit", name, "--gpu-model", profile, "--sharing", "mig", "--", *(command or ("sleep", "600")))


def instances(pool: RealPool) -> list[str]:
    return sorted(gpu["mig_profile"] for gpu in pool.json("list-gpus")["gpus"] if gpu["mig_profile"])


def why(pool: RealPool, name: str) -> Any:
    return pool.json("why", name)


def test_program_runs_on_a_created_instance_which_is_removed_afterwards() -> None:
    with fresh_pool(f"T4,{EMPTY}") as pool:
        submit(pool, "cuda", "3g.40gb", "python3", "-c", CUDA)
        assert eventually(lambda: why(pool, "cuda")["code"] == "MIG_INSTANCE")
        assert "the pool may not create instances there" in why(pool, "cuda")["sentence"]
        assert "the pool may not create" in pool.text("ps")
        assert instances(pool) == []
        allow(pool)
        assert pool.becomes("cuda", "succeeded")
        assert pool.text("logs", "cuda").split() == ["1", "40"]
        assert instances(pool) == ["3g.40gb"], "kept for the next request"
        submit(pool, "large", "7g.80gb")
        assert pool.becomes("large", "running"), "the unused instance made room"
        submit(pool, "waits", "1g.10gb")
        assert eventually(lambda: "no card has room" in why(pool, "waits")["sentence"])
        pool("stop", "large")
        assert pool.becomes("waits", "running")
        allow(pool, FORBID)
        pool("stop", "waits")
        assert eventually(lambda: instances(pool) == [])
        events = pool.text("events")
        assert "MIG instance 3g.40gb created on GPU 1" in events
        assert "MIG instance 3g.40gb removed from GPU 1: to make room for 7g.80gb" in events
        assert "MIG instance 1g.10gb removed from GPU 1: unused" in events


def test_two_profiles_share_a_card_with_an_instance_of_the_administrator() -> None:
    with fresh_pool("A100-80GB[3g.40gb]") as pool:
        allow(pool)
        for name, profile in (("a", "2g.20gb"), ("b", "1g.10gb"), ("c", "3g.40gb")):
            submit(pool, name, profile)
            assert pool.becomes(name, "running")
        assert instances(pool) == ["1g.10gb", "2g.20gb", "3g.40gb"]
        created = [gpu["mig_profile"] for gpu in pool.json("list-gpus")["gpus"] if gpu["on_demand"]]
        assert sorted(created) == ["1g.10gb", "2g.20gb"]
        [node] = pool.json("nodes")["nodes"]
        assert pool.text("describe", "node", node["name"]).count(", created by the pool") == 2
        pool("stop", "a", "b", "c")
        submit(pool, "large", "7g.80gb", "true")
        assert eventually(lambda: "no card has room" in why(pool, "large")["sentence"])
        allow(pool, FORBID)
        assert eventually(lambda: instances(pool) == ["3g.40gb"]), "only the pool's own instances are removed"


def test_killed_agent_and_control_plane_know_the_instances_of_the_pool() -> None:
    with fresh_pool(EMPTY) as pool:
        allow(pool)
        submit(pool, "job", "2g.20gb")
        assert pool.becomes("job", "running")
        pool.kill_child("agent")
        assert eventually(lambda: instances(pool) == ["2g.20gb"])
        assert pool.state_of("job") == "running"
        allow(pool, FORBID)
        pool.kill_child("control-plane")
        assert instances(pool) == ["2g.20gb"], "it is in use"
        pool("stop", "job")
        assert eventually(lambda: instances(pool) == [])


@pytest.mark.parametrize("victim", ["agent", "control-plane"])
def test_kill_while_an_instance_is_created_leaves_one_instance(victim: str) -> None:
    with fresh_pool(EMPTY) as pool:
        faults = pool.run / "fake-gpus" / "faults.conf"
        assert eventually(faults.parent.exists)
        faults.write_text("0 slow-instance 3000\n")
        allow(pool)
        submit(pool, "job", "3g.40gb")
        record = pool.state / "node" / "mig-instances.json"
        assert eventually(lambda: record.exists() and json.loads(record.read_text())["pending"] is not None)
        pool.kill_child(victim)
        faults.unlink()
        assert pool.becomes("job", "running")
        assert instances(pool) == ["3g.40gb"]
        assert len(json.loads(record.read_text())["instances"]) == 1
        submit(pool, "second", "3g.40gb")
        assert pool.becomes("second", "running"), "no incomplete instance is left"


def test_driver_that_refuses_is_named_and_asked_again() -> None:
    with fresh_pool(EMPTY) as pool:
        faults = pool.run / "fake-gpus" / "faults.conf"
        assert eventually(faults.parent.exists)
        faults.write_text("0 mig-denied\n")
        allow(pool)
        submit(pool, "job", "3g.40gb", "true")
        cause = "the driver allows it only to root"
        assert eventually(lambda: cause in why(pool, "job")["sentence"])
        assert cause in pool.text("events")
        faults.unlink()
        assert pool.becomes("job", "succeeded")
