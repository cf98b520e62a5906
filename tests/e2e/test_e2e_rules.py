"""Rules on a real pool: labels and pools of nodes, bounds of a project."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from e2e_pool import RealPool, eventually


def test_project_is_bound_to_a_node_pool(pool: RealPool) -> None:
    node = pool.json("nodes")["nodes"][0]["name"]
    pool("node", "label", node, "pool=old", "rack=r1")
    pool("project", "create", "batch", "--pools", "new", "--max-gpus", "1", "--max-time-limit", "1h")
    refused = pool("submit", "lost", "--project", "batch", "--", "true", ok=False)
    assert b"IMPOSSIBLE_REQUEST" in refused.stderr
    assert b"the pool new" in refused.stderr
    assert b"IMPOSSIBLE_REQUEST" in pool("submit", "lost", "--pool", "new", "--", "true", ok=False).stderr
    pool("node", "label", node, "pool=new", "rack-")
    assert "pool=new" in pool.text("nodes")
    for words in (("-n", "2"), ("--max-time", "2h")):
        told = pool("submit", "big", "--project", "batch", *words, "--", "true", ok=False).stderr
        assert b"OVER_LIMIT" in told
        assert b"the project batch allows" in told
    pool("submit", "found", "--project", "batch", "--pool", "new", "--", "true")
    assert pool.becomes("found", "succeeded")
    assert pool.json("describe", "found")["max_time_s"] == 3600
    pool("node", "label", node, "pool-")
    assert pool.json("node", "label", node) == {}


def test_job_waits_for_its_time_window(pool: RealPool) -> None:
    tomorrow = f"{datetime.now(UTC) + timedelta(days=2):%a}".lower()
    pool("submit", "later", "--window", tomorrow, "--", "true")
    told = pool.json("why", "later")
    assert told["code"] == "WINDOW"
    assert told["estimate_s"] > 3600
    assert tomorrow in told["sentence"]
    assert b"is not a time window" in pool("submit", "x", "--window", "someday", "--", "true", ok=False).stderr
    pool("submit", "now", "--window", tomorrow, "--window", "always", "--", "true")
    assert pool.becomes("now", "succeeded")
    pool("project", "create", "nightly", "--windows", "nights; weekends")
    assert "nights; weekends" in pool.text("describe", "project", "nightly")


def test_reservation_frees_node_and_training_resumes_after_it(own_pool: RealPool) -> None:
    pool = own_pool
    node = pool.json("nodes")["nodes"][0]["name"]
    pool("project", "create", "cs101")
    pool("submit", "training", "-g", "1", "--grace", "1s", "--", "sleep", "1000")
    assert pool.becomes("training", "running")
    made = pool("reserve", "CS101", "--gpus", "1", "--from", "+4s", "--for", "1h", "--project", "cs101")
    assert b"1 training replicas run there now" in made.stderr
    overlap = pool("reserve", "other", "--nodes", node, "--for", "1h", "--maintenance", ok=False)
    assert b"ALREADY_BOOKED" in overlap.stderr
    assert pool.becomes("training", "queued"), "evicted in time"
    [row] = pool.json("describe", "training")["replicas"]
    assert "is reserved (CS101)" in row["message"]
    assert pool.json("why", "training")["code"] == "BOOKED"
    assert eventually(lambda: pool.json("reserve", "list")["bookings"][0]["holds"])
    assert pool("run", "--project", "cs101", "-g", "0.5", "--", "true").returncode == 0, "a student starts at once"
    assert pool.state_of("training") == "queued"
    pool("reserve", "cancel", made.stdout.decode().strip())
    assert pool.becomes("training", "running"), "training continues by itself"
    assert pool.json("reserve", "list")["bookings"] == []
    with pool.client as client:
        begin = time.time() + 3600
        made = client.reserve("driver", begin, begin + 3600, nodes=[node], maintenance=True)
        assert [(b.id, b.projects, b.holds) for b in client.reservations()] == [(made.id, [], False)]
        client.cancel_reservation(made.id)
        assert not client.reservations()
        assert client.set_labels(node, {"rack": "r1"}).labels == {"rack": "r1"}
        assert client.set_labels(node, remove=["rack"]).labels == {}
