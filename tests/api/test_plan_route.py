"""Plans over HTTP and by the Python client, against a whole pool: true, private, and nothing is stored."""

from __future__ import annotations

import httpx2
from live_pool import LivePool, shell

from gpupool.client import Client


def places(http: httpx2.Client) -> dict[str, tuple[str, list[str]]]:
    """Return the node and the GPUs of each active workload; its state may change meanwhile."""
    workloads = http.get("/v1/workloads").json()["workloads"]
    return {workload["id"]: (workload["node"], workload["gpu_uuids"]) for workload in workloads}


def test_plan_that_starts_now_names_its_place(new_http: httpx2.Client) -> None:
    other = new_http.post("/v1/workloads", json=shell("sleep 60", gpus={"fraction": 0.3}), params={"wait": "started"})
    body, before = shell("sleep 60", gpus={"fraction": 0.4}), places(new_http)
    assert list(before) == [other.json()["id"]]
    answer = new_http.post("/v1/plan", json=body)
    assert answer.status_code == 200, answer.text
    plan = answer.json()
    assert (plan["starts_now"], plan["asked"], plan["why"], plan["displaced"]) == (True, 1, None, [])
    assert places(new_http) == before
    made = new_http.post("/v1/workloads", json=body, params={"wait": "started"}).json()
    [start] = plan["starts"]
    assert made["node"] == start["node"]
    assert made["gpu_uuids"] == [gpu["uuid"] for gpu in start["gpus"]]
    assert [gpu["permille"] for gpu in start["gpus"]] == [400]


def test_plan_that_waits_has_the_reason_of_why(new_http: httpx2.Client) -> None:
    held = shell("sleep 60", gpus={"fraction": 0.7}, max_time="30m", preemptible=False, name="holder")
    new_http.post("/v1/workloads", json=held, params={"wait": "started"})
    body = shell("true", gpus={"fraction": 0.5})
    plan = new_http.post("/v1/plan", json=body).json()
    assert plan["starts_now"] is False
    waits = new_http.post("/v1/workloads", json=body).json()
    why = new_http.get(f"/v1/workloads/{waits['id']}/why").json()
    for said in (plan["why"], why):
        assert (said["code"], said["position"]) == ("WAITING_FOR_GPU", 1)
        assert any("request 0.3 instead of 0.5: fits now on n1" in hint for hint in said["would_help"])
        assert any("holder on node n1 ends first" in hint for hint in said["would_help"])
        assert 1700 < said["estimate_low_s"] <= said["estimate_s"] <= said["estimate_high_s"] <= 1800


def test_plan_is_refused_like_submission(pool: LivePool, http: httpx2.Client) -> None:
    refused = http.post("/v1/plan", json=shell("true", gpus={"count": 64}))
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "IMPOSSIBLE_REQUEST")
    assert http.post("/v1/plan", json={"command": "not a list", "bogus": 1}).status_code == 400
    assert pool.remote().post("/v1/plan", json=shell("true")).status_code == 401
    with pool.person("viewer-of-plans", "viewer") as viewer:
        assert viewer.post("/v1/plan", json=shell("true")).status_code == 403


def test_python_client_plans(pool: LivePool) -> None:
    with Client(pool.socket) as client:
        before = {workload.id for workload in client.list()}
        found = client.plan(fraction=0.25, max_time="10m")
        assert (found.starts_now, found.max_time_s, found.gpus.permille) == (True, 600, 250)
        assert {workload.id for workload in client.list()} <= before  # others may have ended
