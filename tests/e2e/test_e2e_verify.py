"""``gpupool verify`` on a real pool: a workload checks emulated GPUs, and a GPU with a fault is cordoned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
from e2e_pool import PATIENCE_S, RealPool, eventually, fresh_pool

from gpupool.verify.schema import verify_schema

pytestmark = pytest.mark.needs("native")


@pytest.fixture(scope="module")
def three_gpus() -> Iterator[RealPool]:
    with fresh_pool("3xT4") as made:
        yield made


@pytest.fixture
def pool(three_gpus: RealPool) -> Iterator[RealPool]:
    """Yield three healthy GPUs without cordons."""
    yield three_gpus
    faults(three_gpus).unlink(missing_ok=True)
    node = node_name(three_gpus)
    for index in cordons(three_gpus):
        three_gpus("uncordon", node, "--gpu", str(index))


def node_name(pool: RealPool) -> str:
    return str(pool.json("nodes")["nodes"][0]["name"])


def cordons(pool: RealPool) -> dict[int, str]:
    """Return the reasons of cordoned GPUs by their index."""
    return {gpu["index"]: gpu["cordon_reason"] for gpu in pool.json("list-gpus")["gpus"] if gpu["cordon_reason"]}


def faults(pool: RealPool) -> Path:
    """Return the file in which the simulated driver finds the faults of its GPUs; its folder exists."""

    def folders() -> list[Path]:
        return [conf.parent for conf in pool.run.rglob("gpus.conf")]

    assert eventually(folders)
    return folders()[0] / "faults.conf"


def test_healthy_gpus_are_checked_by_a_workload(pool: RealPool) -> None:
    done = pool("verify", "--json")
    [report] = json.loads(done.stdout)["reports"]
    jsonschema.validate(report, verify_schema(), cls=jsonschema.Draft202012Validator)
    assert (report["outcome"], report["emulated"], report["node"]) == ("ok", True, node_name(pool))
    assert [gpu["index"] for gpu in report["gpus"]] == [0, 1, 2]
    [workload] = pool.json("ps", "--all")["workloads"][:1]
    assert (workload["project"], workload["labels"]["gpupool.io/verify"]) == ("gpupool-maintenance", node_name(pool))
    [project] = [each for each in pool.json("list", "projects")["projects"] if each["name"] == workload["project"]]
    assert project["members"] == [workload["user"]], "no other user escapes the limits of a project in this one"
    assert cordons(pool) == {}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("flip", "verify: memory: 1 word of memory changed"),
        ("slow-link 8", "verify: link: the PCIe link has 2 of 16 lanes"),
        ("no-peer", "verify: peers: no peer access"),
        ("xid 79", "verify: xid: the GPU reported XID 79"),
        ("vanished", "verify: present: the GPU has disappeared"),
        ("throttle", "verify: throttling: the clocks are lowered"),
    ],
)
def test_gpu_with_a_fault_is_cordoned_and_no_other(pool: RealPool, fault: str, reason: str) -> None:
    faults(pool).write_text(f"1 {fault}\n")
    done = pool("verify", node_name(pool), ok=False)
    assert done.returncode == 2, done.stderr.decode()
    assert b"The GPUs are emulated" in done.stdout
    found = cordons(pool)
    assert list(found) == [1]
    assert found[1].startswith(reason)


def test_cordoned_gpu_is_not_used_until_it_is_uncordoned(pool: RealPool) -> None:
    node = node_name(pool)
    pool("cordon", node, "--gpu", "1", "--reason", "memory errors")
    pool("submit", "all", "-n", "3", "--", "true")
    assert eventually(lambda: pool.json("why", "all")["code"] == "NODE_CORDONED")
    pool("submit", "two", "-n", "2", "--", "true")
    assert pool.becomes("two", "succeeded")
    assert "cordoned (memory errors)" in pool.text("list-gpus")
    pool("uncordon", node, "--gpu", "1")
    assert pool.becomes("all", "succeeded")


def test_history_has_the_results_of_each_gpu(pool: RealPool) -> None:
    faults(pool).write_text("0 flip\n")
    pool("verify", "--no-cordon", ok=False)
    shown = pool.text("verify", "--history", "--gpu", "0").splitlines()
    assert shown[0].split() == ["TIME", "NODE", "GPU", "MODEL", "RESULT", "FINDINGS"]
    assert "fail" in shown[1]
    assert "memory: 1 word of memory changed" in shown[1]
    run = pool.json("verify", node_name(pool), "--history")["runs"][0]
    assert [gpu["outcome"] for gpu in run["report"]["gpus"]] == ["fail", "ok", "ok"]


def test_gpu_that_a_node_lacks_is_refused_before_a_workload_starts(pool: RealPool) -> None:
    before = len(pool.json("ps", "-a")["workloads"])
    refused = pool("verify", "--gpu", "7", ok=False)
    assert refused.returncode == 125
    assert f"{node_name(pool)} has no GPU 7. [NOT_FOUND]\n  It has: 0, 1, 2." in refused.stderr.decode()
    assert len(pool.json("ps", "-a")["workloads"]) == before


def test_level_3_runs_as_long_as_asked(pool: RealPool) -> None:
    [report] = json.loads(pool("verify", "--level", "3", "--burn", "1s", "--gpu", "2", "--json").stdout)["reports"]
    [gpu] = report["gpus"]
    checks = {check["name"]: check for check in gpu["checks"]}
    assert (report["level"], gpu["index"], gpu["outcome"]) == (3, 2, "ok")
    assert checks["burn"]["values"]["seconds"] >= 1


def test_slice_gets_its_memory_and_no_more(pool: RealPool) -> None:
    [report] = json.loads(pool("verify", "--slice", "0.5", "--json").stdout)["reports"]
    [gpu] = report["gpus"]
    checks = {check["name"]: check for check in gpu["checks"]}
    values = checks["slice-memory"]["values"]
    assert (gpu["outcome"], values["limit_mib"], values["total_mib"]) == ("ok", 8192, 8192)
    assert 8192 - 512 <= values["allocated_mib"] < 8192
    assert b"excludes" in pool("verify", "--slice", "0.5", "--gpu", "1", ok=False).stderr


def test_busy_gpus_are_not_checked_within_the_wait(pool: RealPool) -> None:
    pool("submit", "busy", "-g", "1", "--interactive", "--", "sleep", "1000")
    assert pool.becomes("busy", "running")
    done = pool("verify", "--wait", "1s", ok=False)
    assert (done.returncode, b"has no report" in done.stderr) == (125, True)
    pool("stop", "--force", "busy")
    assert pool.all_free()


def test_failed_gpu_stays_in_use_with_no_cordon(pool: RealPool) -> None:
    faults(pool).write_text("2 flip\n")
    assert pool("verify", "--no-cordon", ok=False).returncode == 2
    assert cordons(pool) == {}


def test_policy_checks_idle_gpus_and_cordons_those_with_a_fault() -> None:
    found = {
        0: "memory: 1 word of memory changed",
        1: "link: the PCIe link has 2 of 16 lanes",
        2: "peers: no peer access",
        3: "xid: the GPU reported XID 79",
        4: "throttling: the clocks are lowered",
    }
    with fresh_pool("6xT4") as pool:  # its GPUs were never checked
        faults(pool).write_text("0 flip\n1 slow-link 8\n2 no-peer\n3 xid 79\n4 throttle\n")
        pool("policy", "set", "--verify-idle", "1m")
        assert eventually(lambda: len(cordons(pool)) == len(found), PATIENCE_S * 3)
        for index, reason in cordons(pool).items():
            assert reason.startswith(f"verify: {found[index]}")
        described = pool.text("describe", "node", node_name(pool))
        assert described.count("fail, level 1") == len(found)
        assert described.count("ok, level 1") == 1
        assert "verified 6 GPUs at level 1: fail; GPU 0 fail: memory" in pool.text("events")
        runs = pool.json("verify", "--history")["runs"]
        outcomes = [gpu["outcome"] for gpu in runs[-1]["report"]["gpus"]]
        assert outcomes == ["fail"] * len(found) + ["ok"]
