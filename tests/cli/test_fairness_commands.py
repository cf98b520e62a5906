"""Departments, shares of projects and ``fairshare`` on the command line."""

import json
from typing import Any

from cli_fake_pool import FakePool
from cli_views import node_view, project_view

SHARE = {
    "quota_permille": 4000,
    "limit_permille": None,
    "weight": 2.0,
    "held_permille": 5500,
    "waiting_permille": 3000,
    "fair_permille": 4000.0,
    "recent_permille": 2000.0,
    "used_gpu_hours": 69.24,
}
FAIR = {
    "capacity_permille": 8000,
    "half_life_s": 86400.0,
    "usage_weight": 1.0,
    "projects": [
        {
            "project": "vision",
            "department": "research",
            "protected_permille": 1000,
            "position": 1,
            "reason": "above its fair share by 1.50 GPU",
            "of_models": [{"model": "a100", "quota_permille": 2000, "held_permille": 500}],
            **SHARE,
        }
    ],
    "departments": [{"department": "research", **SHARE}],
    "users": [
        {"project": "vision", "user": "ann", "held_permille": 5500, "recent_permille": 2000.0, "used_gpu_hours": 69.24}
    ],
}


def test_departments_are_created_changed_and_deleted(pool: FakePool, gpupool: Any) -> None:
    made = {"name": "research", "quota_permille": 6000, "weight": 2.0, "limit_permille": 8000, "note": ""}
    pool.answers["POST /v1/departments"] = made | {"projects": []}
    pool.answers["PATCH /v1/departments/research"] = made | {"projects": []}
    gpupool("department", "create", "research", "--quota", "6", "--weight", "2", "--limit", "8")
    wanted = {"name": "research", "quota_permille": 6000, "weight": 2.0, "limit_permille": 8000}
    assert pool.requests[-1][2] == wanted
    gpupool("department", "set", "research", "--quota", "none", "--note", "who pays")
    assert pool.requests[-1][2] == {"quota_permille": None, "note": "who pays"}
    assert gpupool("department", "set", "research").returncode == 2
    assert b"INVALID_COUNT" in gpupool("department", "set", "research", "--weight", "-1").stderr
    pool.answers["GET /v1/departments"] = {"departments": [made | {"projects": ["vision", "speech"]}]}
    assert b"vision, speech" in gpupool("department", "list").stdout
    assert json.loads(gpupool("department", "list", "--json").stdout)["departments"][0]["weight"] == 2.0


def test_project_weights_are_set_and_removed(pool: FakePool, gpupool: Any) -> None:
    pool.answers["PATCH /v1/projects/b"] = project_view(name="b")
    pool.answers["GET /v1/nodes"] = {"nodes": [node_view()], "next_cursor": None}
    for words, body in (
        (("--department", "research", "--weight", "2.5"), {"department": "research", "weight": 2.5}),
        (("--department", "none"), {"department": ""}),
        (("--quota-model", "a100=2, t4=1.5"), {"model_quotas": {"a100": 2000, "t4": 1500}}),
        (("--quota-model", "none"), {"model_quotas": {}}),
        (("--user-weights", "ann=2, bob=0.5"), {"rules": {"user_weights": {"ann": 2.0, "bob": 0.5}}}),
        (("--user-weights", "none"), {"rules": {"user_weights": {}}}),
        (("--user-quotas", "ann=2, bob=0.5"), {"rules": {"user_quotas": {"ann": 2000, "bob": 500}}}),
        (("--user-quotas", "none"), {"rules": {"user_quotas": {}}}),
        (("--gpu-hours", "500"), {"rules": {"gpu_hours": 500.0}}),
        (("--user-gpu-hours", "none"), {"rules": {"user_gpu_hours": None}}),
        (("--spread", "refuse"), {"rules": {"spread": "refuse"}}),
        (("--spread", "none"), {"rules": {"spread": None}}),
    ):
        assert gpupool("project", "set", "b", *words).returncode == 0
        assert pool.requests[-1][2] == body
    for wrong in ("a100", "a100=much", "=2"):
        assert gpupool("project", "set", "b", "--quota-model", wrong).returncode != 0
        assert gpupool("project", "set", "b", "--user-quotas", wrong.replace("=2", "=x")).returncode != 0
        assert gpupool("project", "set", "b", "--user-weights", wrong.replace("=2", "=x")).returncode != 0
    assert b"not a number of GPU hours" in gpupool("project", "set", "b", "--gpu-hours", "many").stderr


def test_fairshare_shows_share_and_reason(pool: FakePool, gpupool: Any) -> None:
    pool.answers["GET /v1/fairshare"] = FAIR
    shown = gpupool("fairshare").stdout.decode()
    assert "research/vision" in shown
    assert "above its fair share by 1.50 GPU" in shown
    assert "69.24" in shown
    assert shown.splitlines()[-1].split() == ["vision", "a100", "2.00", "0.50"]
    assert "ann" not in shown
    assert "ann" in gpupool("fairshare", "--user").stdout.decode()
    assert json.loads(gpupool("fairshare", "--json").stdout) == FAIR
