"""``gpupool plan`` and ``why`` on a real pool: what it says is what happens."""

from __future__ import annotations

import json
from typing import Any

from e2e_pool import RealPool, eventually


def test_plan_for_now_is_correct(pool: RealPool) -> None:
    told = pool.json("plan", "-n", "2")
    assert told["starts_now"]
    assert pool.json("ps")["workloads"] == []
    pool("submit", "planned", "-n", "2", "--", "sleep", "1000")
    assert pool.becomes("planned", "running")
    with pool.client as client:
        held = client.get("planned").detail().gpu_uuids
    assert sorted(held) == sorted(gpu["uuid"] for gpu in told["starts"][0]["gpus"])


def test_plan_names_wait_reason_advice_and_estimate(new_pool: RealPool) -> None:
    new_pool("submit", "first", "-n", "2", "--max-time", "1h", "--no-preemptible", "--", "sleep", "1000")
    assert new_pool.becomes("first", "running")
    told = new_pool("plan", "-n", "1", "--as", "interactive", ok=False)
    text = told.stdout.decode()
    assert told.returncode == 75
    assert "It would wait: needs 1 GPU; 0.00 free" in text
    assert "It should start in about 59m" in text
    assert "first on node" in text
    assert new_pool("plan", "-n", "64", ok=False).returncode == 125
    assert len(new_pool.json("ps")["workloads"]) == 1


def test_plan_counts_victims_and_names_only_their_project(pool: RealPool) -> None:
    pool("project", "create", "borrowers", "--quota", "0", "--min-runtime", "1s")
    pool("project", "create", "owners", "--quota", "2")
    for name in ("lent-1", "lent-2"):
        pool("submit", name, "-g", "1", "--project", "borrowers", "--", "sleep", "1000")
        assert pool.becomes(name, "running")

    def planned() -> Any:
        return json.loads(pool("plan", "-n", "2", "--project", "owners", "--json", ok=False).stdout)

    assert eventually(lambda: planned()["displaced"])
    told = planned()
    assert told["displaced"] == [{"project": "borrowers", "kind": "reclaim", "replicas": 2, "permille": 2000}]
    assert "lent-1" not in json.dumps(told)
    assert (told["starts_now"], told["why"]["code"]) == (False, "STARTING_SOON")
    assert told["why"]["estimate_high_s"] <= 10
    assert pool.state_of("lent-1") == "running"
