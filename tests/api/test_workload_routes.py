"""Submitting, looking, waiting and changing course over HTTP, against a whole pool."""

from __future__ import annotations

import uuid
from typing import Any

import httpx2
import pytest
from live_pool import LivePool, shell

from gpupool.api.schemas.work.workloads import WorkloadSummary

Json = dict[str, Any]


def submit(http: httpx2.Client, body: Json, **params: Any) -> Json:
    answer = http.post("/v1/workloads", json=body, params=params)
    assert answer.status_code == 201, answer.text
    made: Json = answer.json()
    return made


def ended(http: httpx2.Client, workload: str) -> Json:
    while True:
        view: Json = http.get(f"/v1/workloads/{workload}/wait", params={"for": "finished", "timeout_s": 20}).json()
        if view["state"] in {"succeeded", "failed", "stopped"}:
            return view


def error_of(answer: httpx2.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "hint"}
    assert error["message"]
    return str(error["code"])


def test_program_runs_and_its_end_is_reported(http: httpx2.Client) -> None:
    made = submit(http, shell("exit 3", restart="never", env={"PATH": "/usr/bin:/bin", "MARK": "x"}))
    assert made["counts"]["succeeded"] + made["counts"]["failed"] == 0
    view = ended(http, made["id"])
    assert (view["state"], view["exit_status"], view["node"]) == ("failed", 3, "n1")
    assert view["command"] == ["sh", "-c", "exit 3"]
    assert view["env"]["MARK"] == "x"
    assert view["gpus"] == {
        "count": 1,
        "permille": 100,
        "memory_mib": None,
        "models": [],
        "labels": {},
        "compute": "guarantee",
        "sharing": None,
        "placement": None,
    }
    assert [lease["compute"] for lease in view["leases"]] == ["guarantee"]
    assert [r["exit_status"] for r in view["replicas"]] == [3]
    assert [lease["released_at"] is not None for lease in view["leases"]] == [True]
    assert view["gpu_uuids"] == []


def test_submit_can_wait_for_the_start(http: httpx2.Client) -> None:
    made = submit(http, shell("sleep 60"), wait="started", timeout_s=20)
    [replica] = made["replicas"]
    assert replica["state"] in {"starting", "running"}
    assert replica["attach_path"].startswith("/")
    assert replica["gpus"][0]["permille"] == 100
    assert len(made["gpu_uuids"]) == 1
    stopped = http.post(f"/v1/workloads/{made['id']}/stop", json={"force": True})
    assert stopped.status_code == 200
    assert ended(http, made["id"])["state"] == "stopped"


def test_repeated_request_creates_nothing_new(http: httpx2.Client) -> None:
    body = shell("true", request_id=uuid.uuid4().hex)
    first = submit(http, body)
    again = http.post("/v1/workloads", json=body)
    assert again.status_code == 200
    assert again.json()["id"] == first["id"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"not json", 400, "INVALID_REQUEST"),
        (b"", 400, "INVALID_REQUEST"),
        (b"[]", 400, "INVALID_REQUEST"),
        (b'{"command": ["x\\u0000"]}', 400, "INVALID_REQUEST"),
        (b'{"command": ["\\ud800"]}', 400, "INVALID_REQUEST"),
        (b"[" * 100_000, 400, "INVALID_REQUEST"),
        (b'{"command": ["true"], "gpus": {"fraction": 1.5}}', 400, "INVALID_FRACTION"),
        (b'{"command": ["true"], "gpus": {"count": -1}}', 400, "INVALID_COUNT"),
        (b'{"command": ["true"], "gpus": {"count": 64}}', 422, "IMPOSSIBLE_REQUEST"),
        (b'{"command": ["true"], "gpus": {"models": ["H100"]}}', 400, "UNKNOWN_MODEL"),
        (b'{"command": ["true"], "project": "nowhere"}', 404, "UNKNOWN_PROJECT"),
        (b'{"command": ["true"], "max_time": "soon"}', 400, "INVALID_DURATION"),
        (b'{"command": ["true"], "comand": 1}', 400, "INVALID_REQUEST"),
    ],
)
def test_bad_submissions_are_refused_with_a_code(http: httpx2.Client, body: bytes, status: int, code: str) -> None:
    answer = http.post("/v1/workloads", content=body, headers={"content-type": "application/json"})
    assert error_of(answer, status) == code


def test_body_above_limit_is_refused_with_or_without_length(http: httpx2.Client) -> None:
    big = b"x" * (8 * 1024 * 1024 + 1)
    assert error_of(http.post("/v1/workloads", content=big), 413) == "TOO_LARGE"
    pieces = (big[i : i + 65536] for i in range(0, len(big), 65536))
    assert error_of(http.post("/v1/workloads", content=pieces), 413) == "TOO_LARGE"
    pieces = (big[i : i + 65536] for i in range(0, len(big), 65536))
    assert error_of(http.post("/v1/projects", content=pieces), 413) == "TOO_LARGE"
    assert http.get("/v1/health").status_code == 200


def test_workloads_are_listed_by_label_state_and_page(http: httpx2.Client) -> None:
    mark = uuid.uuid4().hex
    made = [submit(http, shell("true", labels={"mark": mark})) for _ in range(3)]
    for view in made:
        ended(http, view["id"])
    label = f"mark={mark}"
    assert http.get("/v1/workloads", params={"label": label}).json()["workloads"] == []
    found, cursor = [], None
    while True:
        query = {"label": label, "all": True, "limit": 2} | ({"cursor": cursor} if cursor else {})
        page = http.get("/v1/workloads", params=query).json()
        found += [view["id"] for view in page["workloads"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == [view["id"] for view in reversed(made)]
    only = http.get("/v1/workloads", params={"label": label, "state": ["succeeded", "failed"]}).json()["workloads"]
    assert len(only) == 3


def test_summary_has_the_fields_of_a_list_with_the_same_values(http: httpx2.Client) -> None:
    mark = uuid.uuid4().hex[:12]
    good = submit(http, shell("true", name=f"good-{mark}"))
    bad = submit(http, shell("exit 3", name=f"bad-{mark}"))
    waiting = submit(http, shell("true", name=f"waits-{mark}", begin="1h"))
    ended(http, good["id"])
    ended(http, bad["id"])
    query = {"search": mark, "all": True}
    whole = http.get("/v1/workloads", params=query).json()["workloads"]
    page = http.get("/v1/workloads", params=query | {"summary": True, "count": True, "limit": 2}).json()
    assert page["total"] == 3
    rest = http.get("/v1/workloads", params=query | {"summary": True, "cursor": page["next_cursor"]}).json()
    short = page["workloads"] + rest["workloads"]
    assert [view["id"] for view in short] == [waiting["id"], bad["id"], good["id"]]
    for some, every in zip(short, whole, strict=True):
        assert set(some) == set(WorkloadSummary.model_fields)
        assert some.items() <= every.items()


@pytest.mark.parametrize("summary", [True, False])
def test_list_says_why_queued_work_waits_if_asked(http: httpx2.Client, *, summary: bool) -> None:
    mark = uuid.uuid4().hex[:12]
    late = submit(http, shell("true", name=f"late-{mark}", begin="1h"))
    done = submit(http, shell("true", name=f"done-{mark}"))
    ended(http, done["id"])
    query = {"search": mark, "all": True, "summary": summary}
    plain = http.get("/v1/workloads", params=query).json()["workloads"]
    assert [view["waiting"] for view in plain] == [None, None]
    found = http.get("/v1/workloads", params=query | {"reasons": True}).json()["workloads"]
    why = http.get(f"/v1/workloads/{late['id']}/why").json()
    assert [view["waiting"] for view in found] == [None, {"code": why["code"], "message": why["sentence"]}]


def test_search_and_sort_cover_all_pages(http: httpx2.Client) -> None:
    mark = uuid.uuid4().hex[:12]
    made = [submit(http, shell("true", name=f"{name}-{mark}")) for name in ("b", "c", "a")]
    for view in made:
        ended(http, view["id"])
    found, cursor = [], None
    while True:
        query = {"search": mark.upper(), "all": True, "sort": "name", "limit": 2, "count": True}
        page = http.get("/v1/workloads", params=query | ({"cursor": cursor} if cursor else {})).json()
        found += [view["name"][0] for view in page["workloads"]]
        assert page["total"] == 3
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == ["a", "b", "c"]
    assert http.get("/v1/workloads", params={"search": f"name:{mark}", "all": True}).json()["total"] is None
    for wrong in ({"sort": "colour"}, {"search": "x " * 9}, {"sort": "name", "cursor": "o-1"}):
        assert error_of(http.get("/v1/workloads", params=wrong), 400) == "INVALID_REQUEST"


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": "many"},
        {"state": "asleep"},
        {"label": "no-equals"},
        {"cursor": "!!!"},
        {"cursor": "bmFuIHcwMDAwMDAwMDAw"},
        {"user": "a\0b"},
    ],
)
def test_invalid_list_parameters_are_named(http: httpx2.Client, query: Json) -> None:
    answer = http.get("/v1/workloads", params=query)
    assert error_of(answer, 400) == "INVALID_REQUEST"
    assert next(iter(query)) in answer.json()["error"]["message"]


def test_suspend_resume_signal_and_why_work(http: httpx2.Client) -> None:
    made = submit(http, shell("trap 'exit 7' USR1; echo up; while :; do sleep 0.05; done"), wait="started")
    assert http.get(f"/v1/workloads/{made['id']}/why").json()["code"] == "NOT_WAITING"
    assert http.post(f"/v1/workloads/{made['id']}/suspend").json()["suspended"] is True
    while http.get(f"/v1/workloads/{made['id']}").json()["state"] != "suspended":
        http.get(f"/v1/workloads/{made['id']}/wait", params={"timeout_s": 0.2})
    assert http.get(f"/v1/workloads/{made['id']}/why").json()["code"] == "SUSPENDED"
    assert http.post(f"/v1/workloads/{made['id']}/resume").json()["suspended"] is False
    assert error_of(http.post(f"/v1/workloads/{made['id']}/resume"), 409) == "WRONG_STATE"
    while http.get(f"/v1/workloads/{made['id']}/logs", params={"tail": 1}).json()["chunks"] == []:
        http.get(f"/v1/workloads/{made['id']}/wait", params={"timeout_s": 0.2})
    for wanted in ("KILLALL", 65, True, 0):
        answer = http.post(f"/v1/workloads/{made['id']}/signal", json={"signal": wanted})
        assert error_of(answer, 400) == "INVALID_REQUEST"
    assert http.post(f"/v1/workloads/{made['id']}/signal", json={"signal": "USR1"}).status_code == 200
    while (view := http.get(f"/v1/workloads/{made['id']}").json())["replicas"][0]["failures"] == 0:
        http.get(f"/v1/workloads/{made['id']}/wait", params={"timeout_s": 0.2})
    assert view["replicas"][0]["exit_status"] == 7
    http.post(f"/v1/workloads/{made['id']}/stop", json={"force": True})
    ended(http, made["id"])


def test_events_are_read_by_filters_and_pages(http: httpx2.Client) -> None:
    made = [submit(http, shell("true")) for _ in range(3)]
    for one in made:
        ended(http, one["id"])
    query: Json = {"reason": "SUBMITTED", "since": made[0]["created_at"] - 1, "limit": 2}
    page = http.get("/v1/audit", params=query).json()
    rest = http.get("/v1/audit", params=query | {"before": page["next"]}).json()
    seen = [event["workload"] for event in page["events"] + rest["events"]]
    assert seen[:3] == [one["id"] for one in reversed(made)]
    assert len(set(seen)) == len(seen)
    about = http.get("/v1/audit", params={"workload": made[0]["id"], "reason": ["SUBMITTED", "EXITED"]}).json()
    assert {event["workload"] for event in about["events"]} == {made[0]["id"]}
    assert http.get("/v1/audit", params={"actor": "nobody"}).json() == {"events": [], "next": None}
    assert http.get("/v1/audit", params={"until": made[0]["created_at"] - 1e6}).json()["events"] == []
    for bad in ({"before": "yesterday"}, {"before": "nan-1"}, {"reason": "BOREDOM"}, {"since": "monday"}):
        assert error_of(http.get("/v1/audit", params=bad), 400) == "INVALID_REQUEST"


def test_waiting_workload_has_reason_and_wait_times_out(http: httpx2.Client) -> None:
    holder = submit(http, shell("sleep 60", gpus={"count": 1}), wait="started")
    waits = submit(http, shell("true"), wait="started", timeout_s=0.1)
    assert waits["state"] == "queued"
    assert waits["replicas"][0]["attach_path"] == ""
    why = http.get(f"/v1/workloads/{waits['id']}/why").json()
    assert why["position"] == 1
    assert why["sentence"]
    pool = http.get("/v1/pool").json()
    assert (pool["gpu_permille_allocated"], pool["queued"] >= 1, pool["emulated"]) == (1000, True, True)
    [gpu] = http.get("/v1/gpus").json()["gpus"]
    assert [h["workload"] for h in gpu["holders"]] == [holder["id"]]
    assert gpu["allocated_permille"] == 1000
    http.post(f"/v1/workloads/{holder['id']}/stop", json={"force": True})
    assert ended(http, waits["id"])["state"] == "succeeded"


def test_lease_is_extended_used_and_released(http: httpx2.Client) -> None:
    body = {"kind": "lease", "gpus": {"fraction": 0.2}, "lifetime": "1h"}
    lease = submit(http, body, wait="started")
    before = http.get(f"/v1/workloads/{lease['id']}").json()["expires_at"]
    longer = http.post(f"/v1/workloads/{lease['id']}/extend", json={"seconds": 600}).json()
    assert longer["expires_at"] == pytest.approx(before + 600)
    assert error_of(http.post(f"/v1/workloads/{lease['id']}/extend", json={"seconds": -1}), 400) == "INVALID_REQUEST"
    used = {**shell("exit 0", kind="exec", on=lease["id"])}
    used.pop("gpus")
    assert ended(http, submit(http, used)["id"])["state"] == "succeeded"
    http.post(f"/v1/workloads/{lease['id']}/stop")
    assert ended(http, lease["id"])["state"] in {"stopped", "succeeded"}


def test_only_ended_workloads_are_deleted(http: httpx2.Client) -> None:
    made = submit(http, shell("sleep 60"))
    assert error_of(http.delete(f"/v1/workloads/{made['id']}"), 409) == "WRONG_STATE"
    http.post(f"/v1/workloads/{made['id']}/stop", json={"force": True})
    ended(http, made["id"])
    assert http.delete(f"/v1/workloads/{made['id']}").status_code == 204
    assert error_of(http.get(f"/v1/workloads/{made['id']}"), 404) == "UNKNOWN_WORKLOAD"


@pytest.mark.parametrize("path", ["", "/wait", "/why", "/logs"])
def test_unknown_workloads_are_not_found(http: httpx2.Client, path: str) -> None:
    assert error_of(http.get(f"/v1/workloads/nothing-like-it{path}"), 404) == "UNKNOWN_WORKLOAD"
    assert error_of(http.get(f"/v1/workloads/-bad-{path}"), 400) == "INVALID_REQUEST"


def test_other_users_see_state_but_not_command(pool: LivePool, http: httpx2.Client) -> None:
    made = submit(http, shell("echo secret; sleep 60", env={**shell("")["env"], "KEY": "secret"}), wait="started")
    with pool.person("mallory", "member") as other:
        view = other.get(f"/v1/workloads/{made['id']}")
        assert view.status_code == 200
        assert "secret" not in view.text
        shown = view.json()
        assert (shown["command"], shown["workdir"], shown["env"]) == (None, None, None)
        assert shown["replicas"][0]["parameters"] is None
        assert shown["replicas"][0]["attach_path"] == ""
        assert error_of(other.get(f"/v1/workloads/{made['id']}/logs"), 403) == "FORBIDDEN"
        whole = {"accept": "application/octet-stream"}
        assert error_of(other.get(f"/v1/workloads/{made['id']}/logs", headers=whole), 403) == "FORBIDDEN"
        assert error_of(other.get(f"/v1/workloads/{made['id']}/logs", params={"follow": True}), 403) == "FORBIDDEN"
        for verb, body in (
            ("stop", {}),
            ("suspend", None),
            ("restart", {"force": True}),
            ("resume", None),
            ("signal", {"signal": "INT"}),
            ("extend", {"seconds": 1}),
        ):
            assert error_of(other.post(f"/v1/workloads/{made['id']}/{verb}", json=body), 403) == "FORBIDDEN"
        assert error_of(other.delete(f"/v1/workloads/{made['id']}"), 403) == "FORBIDDEN"
    http.post(f"/v1/workloads/{made['id']}/stop", json={"force": True})
    ended(http, made["id"])
