"""Fair shares on a real pool: weights decide who runs, and the pool says why."""

from __future__ import annotations

from e2e_pool import RealPool, eventually, fresh_pool


def test_weights_divide_over_quota_gpus() -> None:
    with fresh_pool("4xT4") as pool:
        look_at(pool)


def look_at(pool: RealPool) -> None:
    gpus = 4
    pool("department", "create", "research", "--weight", "3")
    pool("project", "create", "vision", "--department", "research", "--quota", "0")
    pool("project", "create", "sales", "--quota", "0", "--quota-model", "none")
    pool("cordon", pool.json("nodes")["nodes"][0]["name"])
    for project in ("sales", "vision"):
        pool("submit", project, "--project", project, "-g", "1", "--sweep", "x=1,2,3,4", "--", "sleep", "1000")
    told = pool.json("fairshare")
    assert {row["project"]: row["waiting_permille"] for row in told["projects"] if row["waiting_permille"]} == {
        "sales": gpus * 1000,
        "vision": gpus * 1000,
    }
    pool("uncordon", pool.json("nodes")["nodes"][0]["name"])
    due = {"vision": gpus * 3 // 4, "sales": gpus - gpus * 3 // 4}

    def held() -> dict[str, int]:
        rows = pool.json("fairshare")["projects"]
        return {row["project"]: row["held_permille"] // 1000 for row in rows if row["project"] in due}

    assert eventually(lambda: held() == due), held()
    shown = pool.text("fairshare", "--user")
    assert "research/vision" in shown
    assert "at its fair share" in shown
    assert "RECENT USE" in shown
    assert pool.json("department", "list")["departments"][0]["projects"] == ["vision"]
    refused = pool("department", "delete", "research", ok=False)
    assert b"WRONG_STATE" in refused.stderr
    pool("department", "set", "research", "--limit", "none", "--quota", "1")
    assert b"UNKNOWN_DEPARTMENT" in pool("project", "set", "sales", "--department", "reserch", ok=False).stderr
