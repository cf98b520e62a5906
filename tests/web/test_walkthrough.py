"""A walk through the dashboard as a member, a manager and an administrator, with pictures for docs/dashboard.md.

``GPUPOOL_SCREENSHOTS=1 pytest tests/web/test_walkthrough.py`` writes the pictures.
"""

from __future__ import annotations

import json

import pytest
from e2e_pool import eventually
from playwright.sync_api import expect
from web_harness import IMAGES, Visit, WebPool, picture

MAX_PICTURE_BYTES = 150_000
REPORT = """
import json, os, sys, time
rate = float(sys.argv[1])
metrics = dict(loss=round(1 / rate, 3), accuracy=round(0.9 + rate / 100, 3))
with open(os.environ["GPUPOOL_PROGRESS_FILE"], "w") as file:
    json.dump(dict(saved_at=None, step=100, metrics=metrics), file)
time.sleep(600)
"""


@pytest.fixture
def team(web_pool: WebPool) -> WebPool:
    """Start a running sweep of ann's, a job that failed, and one that waits; boss manages their project."""
    ann, boss = web_pool.token("ann", "member"), web_pool.token("boss", "manager")
    assert ann != boss
    web_pool("project", "create", "vision", "--member", "ann", "--member", "boss", "--quota", "2", ok=False)
    with web_pool.client as client:
        sweep = {"grid": {"rate": [1, 2, 4]}}
        tuning = client.submit(
            ["python3", "-c", REPORT, "{rate}"], name="tuning", project="vision", gpus={"fraction": 0.25}, sweep=sweep
        )
        wrong = ["sh", "-c", "echo no such file >&2; exit 3"]
        client.submit(wrong, name="broken", project="vision", gpus={"fraction": 0.1}, restart="never")
        client.submit(["sleep", "600"], name="pretrain", project="vision", gpus={"count": 2})

        def reported() -> bool:
            rows = json.loads(web_pool("results", tuning.id, "--json").stdout)["rows"]
            return all(row["metrics"] for row in rows)

        assert eventually(reported)
    return web_pool


def test_each_role_finds_its_answers(visit: Visit, team: WebPool) -> None:
    member = visit(width=1100, height=620)
    member.goto("/workloads/tuning/results?sort=loss")
    expect(member.locator("main")).to_contain_text("accuracy")
    assert member.locator("tbody tr").first.locator("td").nth(2).inner_text() == "4", "the smallest loss is first"
    picture(member, "walk-results")

    manager = visit("boss", "manager", width=1100, height=620)
    manager.goto("/home?view=team")
    for word in ("tuning", "pretrain", "broken", "exited with status 3"):
        expect(manager.locator("main")).to_contain_text(word)
    picture(manager, "walk-manager")

    administrator = visit(width=1100, height=620)
    administrator.goto("/home?view=pool")
    expect(administrator.locator("main")).to_contain_text("broken")
    picture(administrator, "walk-administrator")


def test_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in IMAGES.glob("walk-*.png")}
    assert len(sizes) == 3
    assert {name: size for name, size in sizes.items() if size > MAX_PICTURE_BYTES} == {}
