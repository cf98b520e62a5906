"""Measurements over HTTP."""

from __future__ import annotations

import time

import httpx2
import pytest
from live_pool import LivePool, shell
from node_harness import eventually


def test_telemetry_is_returned_for_now_and_over_time(http: httpx2.Client) -> None:
    made = http.post("/v1/workloads", json=shell("sleep 60")).json()
    replicas = eventually(
        lambda: [
            row
            for node in http.get("/v1/telemetry").json()["nodes"]
            for row in node["replicas"]
            if row["key"].startswith(f"{made['id']}.")
        ],
        "the program is seen",
    )
    assert replicas[0]["processes"] >= 1
    assert replicas[0]["memory_mib"] >= 1
    (node,) = http.get("/v1/telemetry").json()["nodes"]
    assert abs(node["at"] - time.time()) < 30
    series = http.get(f"/v1/workloads/{made['id']}/telemetry").json()
    assert series["step_s"] == 1
    assert len(series["times"]) == len(series["values"]["cpu_percent"]) >= 1
    machine = http.get(f"/v1/nodes/{node['node']}/telemetry", params={"step": "minute"}).json()
    assert (machine["step_s"], machine["times"][0] % 60) == (60, 0)
    assert machine["values"]["memory_used_mib"][0] > 0
    nobody = http.get("/v1/gpus/GPU-none/telemetry").json()
    assert (nobody["times"], set(nobody["values"]["utilisation_percent"])) == ([], set())


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/nodes/nowhere/telemetry", 404, "UNKNOWN_NODE"),
        ("/v1/workloads/nothing/telemetry", 404, "UNKNOWN_WORKLOAD"),
        ("/v1/gpus/GPU-1/telemetry?since=10&until=9", 400, "INVALID_REQUEST"),
        ("/v1/gpus/GPU-1/telemetry?since=0&until=1800000000", 400, "INVALID_REQUEST"),
        ("/v1/gpus/GPU-1/telemetry?step=second", 400, "INVALID_REQUEST"),
        ("/v1/gpus/GPU-1/telemetry?since=nan", 400, "INVALID_REQUEST"),
        ("/v1/gpus/GPU'1/telemetry", 400, "INVALID_REQUEST"),
    ],
)
def test_invalid_telemetry_requests_are_refused(http: httpx2.Client, path: str, status: int, code: str) -> None:
    answer = http.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_viewers_may_read_and_unauthenticated_users_may_not(pool: LivePool) -> None:
    with pool.person("looker", "viewer") as viewer:
        assert viewer.get("/v1/telemetry").status_code == 200
    with pool.remote() as stranger:
        assert stranger.get("/v1/telemetry").status_code == 401
