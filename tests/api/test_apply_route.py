"""Manifests over HTTP: whose they are, who may apply them, and that one file makes one object."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from live_pool import LivePool

from gpupool.client import Client

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  restartPolicy: Never
  containers: [{name: c, command: [sleep, "60"], livenessProbe: {exec: {command: [x]}}}]
"""


def body(name: str, **more: Any) -> dict[str, Any]:
    return {"text": POD.replace("NAME", name), "name": "p.yaml", "no_container": True, "workdir": "/tmp", **more}


def test_apply_answer_has_results_and_warnings(http: httpx2.Client) -> None:
    answer = http.post("/v1/apply", json=body("told")).json()
    assert [(one["resource"], one["name"], one["action"]) for one in answer["objects"]] == [("pod", "told", "created")]
    [warning] = answer["warnings"]
    assert (warning["code"], warning["line"], warning["column"]) == ("FIELD_IGNORED", 6, 50)
    shown = http.get(f"/v1/workloads/{answer['objects'][0]['workload']['id']}").json()
    assert (shown["command"], shown["labels"]["gpupool/kind"]) == (["sleep", "60"], "Pod")
    assert shown["replicas"][0]["member"] == "told"


def test_dry_run_creates_nothing(http: httpx2.Client) -> None:
    [one] = http.post("/v1/apply", json=body("dry", dry_run=True)).json()["objects"]
    assert (one["action"], one["workload"]) == ("created", None)
    assert http.get("/v1/workloads", params={"name": "dry", "all": True}).json()["workloads"] == []


def test_simultaneous_applies_create_one_object(pool: LivePool) -> None:
    with pool.http() as http, ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: http.post("/v1/apply", json=body("once")).json(), range(6)))
        actions = sorted(answer["objects"][0]["action"] for answer in answers)
        assert actions == ["created"] + ["unchanged"] * 5
        assert len(http.get("/v1/workloads", params={"name": "once"}).json()["workloads"]) == 1


@pytest.mark.root
def test_apply_never_matches_objects_of_other_users(pool: LivePool, http: httpx2.Client) -> None:
    http.post("/v1/apply", json=body("mine"))
    two = body("yours")["text"] + "---\n" + body("mine")["text"]
    status, answer = pool.as_uid(54_321, "POST", "/v1/apply", body("mine", text=two, force=True))
    assert (status, answer["error"]["code"]) == (409, "NAME_TAKEN")
    assert answer["error"]["message"].startswith("p.yaml:10:12: ")
    assert http.get("/v1/workloads", params={"name": "yours", "all": True}).json()["workloads"] == []
    with pool.person("viewer-of-manifests", "viewer") as viewer:
        refused = viewer.post("/v1/apply", json=body("mine"))
        assert refused.status_code == 403, refused.text
    assert pool.remote().post("/v1/apply", json=body("mine")).status_code == 401


def test_invalid_object_is_refused_with_its_position(http: httpx2.Client) -> None:
    for text, status, said in [
        (POD.replace("NAME", "bad").replace("command", "comand"), 400, "p.yaml:6:26: There is no field"),
        ("kind: [", 400, "p.yaml:"),
        ("", 400, "p.yaml contains no manifest"),
        (POD.replace("NAME", "no").replace("[sleep", '["x\\0y"'), 400, "p.yaml:6:16: "),
    ]:
        answer = http.post("/v1/apply", json=body("bad", text=text))
        assert answer.status_code == status, (text, answer.text)
        assert said in answer.json()["error"]["message"]
    unknown = http.post("/v1/apply", json=body("bad", project="nowhere"))
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "UNKNOWN_PROJECT")
    assert http.post("/v1/apply", json={"txt": "x"}).status_code in {400, 422}


def test_file_with_too_many_objects_is_refused_unapplied(http: httpx2.Client) -> None:
    many = "---\n".join(POD.replace("NAME", f"p{i}") for i in range(1001))
    answer = http.post("/v1/apply", json=body("x", text=many))
    assert answer.status_code == 413, answer.text


def test_python_client_applies_files(pool: LivePool) -> None:
    with Client(socket_path=str(pool.socket)) as client:
        [one] = client.apply(POD.replace("NAME", "by-client"), no_container=True, workdir="/tmp").objects
        assert (one.action, client.get("by-client").id) == ("created", one.workload.id)
