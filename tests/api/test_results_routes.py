"""Results of a sweep, from what its programs really report, and the efficiency of a workload."""

from __future__ import annotations

import csv
import io

import httpx2
import pytest
from live_pool import Json, LivePool, shell
from node_harness import eventually

METRICS = '{{"saved_at": null, "step": %s, "metrics": {{"loss": %s.5, "lr2": 1}}}}'
REPORT = f"printf '{METRICS}' {{n}} {{n}} > $GPUPOOL_PROGRESS_FILE"


@pytest.fixture
def sweep(http: httpx2.Client) -> Json:
    body = shell(f"{REPORT}; sleep 600", sweep={"grid": {"n": [3, 1], "name": ["=x"]}}, gpus={"count": 0})
    made: Json = http.post("/v1/workloads", json=body).json()

    def reported() -> bool:
        rows = http.get(f"/v1/workloads/{made['id']}/results").json()["rows"]
        return all(row["metrics"] for row in rows)

    eventually(reported, "all replicas have reported")
    return made


def test_results_have_parameters_and_metrics(http: httpx2.Client, sweep: Json) -> None:
    path = f"/v1/workloads/{sweep['id']}/results"
    table = http.get(path).json()
    assert (table["parameters"], table["metrics"]) == (["n", "name"], ["loss", "lr2"])
    assert [(row["parameters"]["n"], row["metrics"]["loss"], row["step"]) for row in table["rows"]] == [
        (3, 3.5, 3),
        (1, 1.5, 1),
    ]
    best = http.get(path, params={"sort": "-loss", "limit": 1}).json()
    assert [row["index"] for row in best["rows"]] == [0]
    rest = http.get(path, params={"sort": "-loss", "limit": 1, "cursor": best["next_cursor"]}).json()
    assert [row["index"] for row in rest["rows"]] == [1]
    assert http.get(path, params={"sort": "n", "state": "failed"}).json()["rows"] == []
    detail = http.get(f"/v1/workloads/{sweep['id']}").json()
    assert detail["replicas"][0]["metrics"] == {"loss": 3.5, "lr2": 1.0}


def test_results_as_csv_are_exact_and_no_formulas(http: httpx2.Client, sweep: Json) -> None:
    answer = http.get(f"/v1/workloads/{sweep['id']}/results", params={"format": "csv", "sort": "loss"})
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["n"], row["loss"], row["name"]) for row in rows] == [
        ("1", "1.5", "'=x"),
        ("3", "3.5", "'=x"),
    ]


def test_others_see_no_parameters_and_metrics(pool: LivePool, sweep: Json) -> None:
    with pool.person("curious", "member") as other:
        table = other.get(f"/v1/workloads/{sweep['id']}/results").json()
    assert (table["parameters"], table["metrics"]) == ([], [])
    assert {len(row["parameters"]) for row in table["rows"]} == {0}


def test_efficiency_has_requested_and_measured(http: httpx2.Client) -> None:
    made = http.post("/v1/workloads", json=shell("sleep 600")).json()
    path = f"/v1/workloads/{made['id']}/efficiency"
    eventually(lambda: http.get(path).json()["measured_s"] >= 1, "samples of the program are stored")
    found = http.get(path).json()
    assert (found["gpus"], found["permille"]) == (1, 100)
    assert found["granted_memory_mib"] > 0
    assert found["suggestions"] == []  # too short
