"""Policies of sharing over HTTP, and what is shown of the mode that work got."""

from __future__ import annotations

import httpx2
import pytest
from live_pool import shell


def test_gpu_policy_is_set_shown_and_removed(http: httpx2.Client) -> None:
    made = http.post("/v1/nodes/n1/sharing", json={"mode": "advisory", "gpu": 0})
    assert made.status_code == 200, made.text
    try:
        first = next(gpu for gpu in http.get("/v1/gpus").json()["gpus"] if gpu["index"] == 0)
        assert (first["sharing"], first["sharing_policy"]) == ("advisory", "advisory")
    finally:
        back = http.post("/v1/nodes/n1/sharing", json={"mode": None, "gpu": 0})
    assert {gpu["sharing_policy"] for gpu in back.json()["gpus"]} == {None}


@pytest.mark.parametrize(
    ("body", "status"),
    [({"mode": "magic"}, 400), ({}, 400), ({"mode": "mig"}, 400), ({"mode": "advisory", "gpu": 4711}, 404)],
)
def test_invalid_policy_is_refused(http: httpx2.Client, body: object, status: int) -> None:
    assert http.post("/v1/nodes/n1/sharing", json=body).status_code == status


def test_project_sharing_rules_are_set_and_shown(http: httpx2.Client) -> None:
    project = {"name": "capped", "compute_default": "cap", "compute_allowed": ["cap"]}
    made = http.post("/v1/projects", json=project)
    assert made.status_code == 201, made.text
    assert (made.json()["compute_default"], made.json()["compute_allowed"]) == ("cap", ["cap"])
    job = http.post("/v1/workloads", json=shell("true", project="capped")).json()
    assert job["gpus"]["compute"] == "cap"
    refused = http.post(
        "/v1/workloads", json=shell("true", project="capped", gpus={"fraction": 0.1, "compute": "none"})
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "FORBIDDEN")
    changed = http.patch("/v1/projects/capped", json={"compute_default": None, "compute_allowed": []})
    assert (changed.json()["compute_default"], changed.json()["compute_allowed"]) == (None, [])


def test_whole_gpu_is_shown_as_whole(http: httpx2.Client) -> None:
    job = http.post("/v1/workloads", json=shell("true", gpus={"count": 1})).json()
    detail = http.get(f"/v1/workloads/{job['id']}").json()
    assert detail["sharing"] == "whole"
    assert "No other workload" in detail["guarantees"]
