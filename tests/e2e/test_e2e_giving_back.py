"""S4 at the size of a pool: full of borrowed training, it gives an owner's quota back at once, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from e2e_pool import RealPool, eventually, fresh_pool

GRACE = "10m"  # far longer than a test may take: the programs end on TERM at once, and nobody waits any longer
TRAINING = 'trap "exit 0" TERM; echo began at attempt $GPUPOOL_ATTEMPT; while :; do sleep 0.05; done'


@pytest.fixture(scope="module")
def lab() -> Iterator[RealPool]:
    """Yield eight GPUs, two projects with a quota of four each, no min-runtime; the second uses GPUs of the first."""
    with fresh_pool("8xT4") as made:
        for name in ("owner", "borrower"):
            made("project", "create", name, "--quota", "4", "--min-runtime", "0s")
        made(
            "submit", "borrowed", "--project", "borrower", "-g", "1", "--completions", "8", "--parallelism", "8",
            "--grace", GRACE, "--", "sh", "-c", TRAINING,
        )  # fmt: skip
        assert eventually(lambda: running(made, "borrowed") == 8)
        yield made


def replicas(pool: RealPool, name: str) -> list[dict[str, Any]]:
    listed = pool.json("describe", name)["replicas"]
    assert isinstance(listed, list)
    return listed


def running(pool: RealPool, name: str) -> int:
    return sum(row["state"] == "running" for row in replicas(pool, name))


def test_quota_is_reclaimed_and_victims_have_a_reason(lab: RealPool) -> None:
    lab("submit", "owned", "--project", "owner", "-n", "4", "--interactive", "--", "sleep", "1000")
    assert lab.becomes("owned", "running")
    assert eventually(lambda: running(lab, "borrowed") == 4)  # within its own quota nobody is touched

    victims = [row for row in replicas(lab, "borrowed") if row["state"] != "running"]
    assert len(victims) == 4, "no more than are needed"
    events = [e for e in lab.json("events", "borrowed")["events"] if e["reason"] == "PREEMPTED"]
    assert {event["index"] for event in events} == {row["index"] for row in victims}
    for event in events:
        assert "owner" in event["message"], "who"
        assert "quota" in event["message"] or "share" in event["message"], "why"
        assert event["at"] > 0
    assert all(row["state"] == "pending" and row["interruptions"] == 1 and row["failures"] == 0 for row in victims)
    why = lab.json("why", "borrowed")
    assert why["sentence"], "what it waits for now"

    lab("stop", "owned")
    assert eventually(lambda: running(lab, "borrowed") == 8), "training resumes by itself"
    assert eventually(lambda: "attempt 2" in lab.text("logs", f"borrowed/{victims[0]['index']}"))


def test_model_quota_reclaims_gpus_from_within_a_quota() -> None:
    with fresh_pool("1xA100,1xT4") as pool:
        pool("project", "create", "owner", "--quota", "1", "--quota-model", "a100=1")
        pool("project", "create", "guest", "--quota", "2", "--min-runtime", "0s")
        pool("submit", "first", "--project", "guest", "-n", "1", "--", "sh", "-c", TRAINING)
        pool("submit", "second", "--project", "guest", "-n", "1", "--", "sh", "-c", TRAINING)
        assert pool.becomes("first", "running")
        assert pool.becomes("second", "running")
        pool("submit", "named", "--project", "owner", "-n", "1", "--model", "a100", "--", "sleep", "1000")
        assert pool.becomes("named", "running")
        (owner,) = [row for row in pool.json("fairshare")["projects"] if row["project"] == "owner"]
        assert owner["of_models"] == [{"model": "a100", "quota_permille": 1000, "held_permille": 1000}]
        (event,) = [e for e in pool.json("events")["events"] if e["reason"] == "PREEMPTED" and "asked" in e["message"]]
        assert "guest has 1.00 GPUs of model a100; its quota for this model is 0.00" in event["message"]
        assert sum(running(pool, name) for name in ("first", "second")) == 1
