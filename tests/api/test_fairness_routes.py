"""Departments and fair shares over HTTP."""

from __future__ import annotations

import uuid
from typing import Any

import httpx2
import pytest
from live_pool import LivePool


def code_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture
def name() -> str:
    return f"dept-{uuid.uuid4().hex[:8]}"


def test_department_is_created_changed_and_removed(http: httpx2.Client, name: str) -> None:
    bounds = {"quota_permille": 6000, "weight": 2.0, "limit_permille": 8000, "note": "who pays"}
    made = http.post("/v1/departments", json={"name": name, **bounds})
    assert (made.status_code, made.json()) == (201, {"name": name, "projects": [], **bounds})
    assert code_of(http.post("/v1/departments", json={"name": name})) == (409, "NAME_TAKEN")
    changed = http.patch(f"/v1/departments/{name}", json={"quota_permille": None})
    assert (changed.json()["quota_permille"], changed.json()["weight"]) == (None, 2.0)
    project = f"p-{name}"
    shares = {"department": name, "weight": 3.0, "model_quotas": {"a100": 2000, "t4": 500}}
    inside = http.post("/v1/projects", json={"name": project, **shares}).json()
    assert {field: inside[field] for field in shares} == shares
    (share,) = [row for row in http.get("/v1/fairshare").json()["projects"] if row["project"] == project]
    quotas = [("a100", 2000, 0), ("t4", 500, 0)]
    assert [(of["model"], of["quota_permille"], of["held_permille"]) for of in share["of_models"]] == quotas
    listed = {row["name"]: row for row in http.get("/v1/departments").json()["departments"]}
    assert listed[name]["projects"] == [project]
    assert code_of(http.delete(f"/v1/departments/{name}")) == (409, "WRONG_STATE")
    out = http.patch(f"/v1/projects/{project}", json={"department": "", "model_quotas": {}}).json()
    assert (out["department"], out["weight"], out["model_quotas"]) == ("", 3.0, {})
    assert http.delete(f"/v1/departments/{name}").status_code == 204
    assert code_of(http.delete(f"/v1/departments/{name}")) == (404, "UNKNOWN_DEPARTMENT")
    assert http.delete(f"/v1/projects/{project}").status_code == 204


def test_budgets_and_user_weights_are_stored_and_removed(http: httpx2.Client, name: str) -> None:
    rules: dict[str, Any] = {"gpu_hours": 500.5, "user_gpu_hours": 10.0, "user_weights": {"ann": 2.0, "bob": 0.5}}
    rules |= {"user_quotas": {"ann": 1500}, "spread": "refuse"}
    made = http.post("/v1/projects", json={"name": name, "rules": rules})
    assert made.status_code == 201, made.text
    assert {rule: made.json()["rules"][rule] for rule in rules} == rules
    assert made.json()["gpu_hours_used"] == 0
    (listed,) = [row for row in http.get("/v1/projects").json()["projects"] if row["name"] == name]
    assert {rule: listed["rules"][rule] for rule in rules} == rules
    changed = http.patch(f"/v1/projects/{name}", json={"rules": {"user_weights": {}, "gpu_hours": None}}).json()[
        "rules"
    ]
    assert (changed["user_weights"], changed["gpu_hours"], changed["user_gpu_hours"]) == ({}, None, 10.0)
    for wrong in (
        {"gpu_hours": -1},
        {"user_weights": {"ann": 0}},
        {"user_weights": {"/": 1}},
        {"user_quotas": {"ann": 0}},
        {"spread": "no"},
    ):
        assert code_of(http.patch(f"/v1/projects/{name}", json={"rules": wrong}))[0] in {400, 422}
    assert http.delete(f"/v1/projects/{name}").status_code == 204


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": -1},
        {"weight": "much"},
        {"quota_permille": -1},
        {"limit_permille": 1.5},
        {"color": "red"},
        {"name": "/"},
    ],
)
def test_invalid_limits_are_refused(http: httpx2.Client, name: str, wrong: dict[str, object]) -> None:
    assert code_of(http.post("/v1/departments", json={"name": name, **wrong}))[0] in {400, 422}


def test_members_may_only_read(pool: LivePool, http: httpx2.Client, name: str) -> None:
    http.post("/v1/departments", json={"name": name})
    with pool.person("ordinary", "member") as member:
        assert member.get("/v1/departments").status_code == 200
        assert member.get("/v1/fairshare").status_code == 200
        assert code_of(member.post("/v1/departments", json={"name": f"{name}-2"})) == (403, "FORBIDDEN")
        assert code_of(member.patch(f"/v1/departments/{name}", json={"weight": 9})) == (403, "FORBIDDEN")
        assert code_of(member.delete(f"/v1/departments/{name}")) == (403, "FORBIDDEN")
    assert http.delete(f"/v1/departments/{name}").status_code == 204


def test_fair_shares_list_every_project(http: httpx2.Client) -> None:
    found = http.get("/v1/fairshare").json()
    names = {row["project"] for row in found["projects"]}
    assert names >= {project["name"] for project in http.get("/v1/projects").json()["projects"]}
    assert found["half_life_s"] == 86_400
    assert all(row["reason"] for row in found["projects"])
