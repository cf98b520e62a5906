"""``gpupool plan``: what it asks, what it says, how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli_fake_pool import FakePool, why_view
from cli_views import plan_view

from gpupool.cli.render.plans import plan_lines
from gpupool.cli.render.text import Style

START = plan_view()["starts"][0]
WHOLE = {"uuid": "GPU-0", "index": 0, "permille": 1000, "memory_mib": 16000}


def test_plan_that_starts_now_exits_with_0(pool: FakePool, gpupool: Any) -> None:
    pool.answers["POST /v1/plan"] = plan_view()
    done = gpupool("plan", "-g", "0.5", "--max-time", "40m", "--as", "interactive")
    assert (done.returncode, done.stdout) == (0, b"It would start now on gpu1: 0.50 of GPU 0.\n")
    method, path, body = pool.requests[-1]
    assert (method, path, body["gpus"]["fraction"], body["kind"]) == ("POST", "/v1/plan", 0.5, "interactive")
    assert body["command"] == ["true"]


def test_plan_that_waits_exits_with_75_and_reason(pool: FakePool, gpupool: Any) -> None:
    pool.answers["POST /v1/plan"] = plan_view(starts=[], starts_now=False, why=why_view())
    done = gpupool("plan", "-g", "0.5", "--", "python3", "train.py")
    assert done.returncode == 75
    assert b"It would wait: It needs 0.50 GPU" in done.stdout
    assert b"about 4m00s" in done.stdout
    assert json.loads(gpupool("plan", "-g", "0.5", "--json").stdout)["starts_now"] is False


def test_plan_that_can_never_start_exits_with_125(pool: FakePool, gpupool: Any) -> None:
    pool.refuse = {"code": "IMPOSSIBLE_REQUEST", "message": "No node can provide 9 GPUs.", "hint": "4 at most."}
    done = gpupool("plan", "-g", "9")
    assert (done.returncode, b"[IMPOSSIBLE_REQUEST]" in done.stderr) == (125, True)


def test_plan_of_lease_has_no_command(pool: FakePool, gpupool: Any) -> None:
    pool.answers["POST /v1/plan"] = plan_view(kind="lease")
    assert gpupool("plan", "-g", "1", "--as", "lease", "--for", "2h").returncode == 0
    body = pool.requests[-1][2]
    assert (not body.get("command"), body["lifetime"]) == (True, 7200.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"starts": [START | {"gpus": [WHOLE]}]}, ["It would start now on gpu1: GPU 0."]),
        (
            {"starts": [START | {"gpus": [WHOLE, WHOLE | {"index": 3}]}]},
            ["It would start now on gpu1: GPUs 0, 3."],
        ),
        (
            {"asked": 2, "completions": 9, "starts_now": False, "why": why_view(would_help=[], position=None)},
            [
                "1 of 2 replicas would start now; 2 of 9 would be queued at once.",
                "REPLICA  NODE  GPUS",
                "0        gpu1  0.50 of GPU 0",
                "The others would wait: It needs 0.50 GPU on a Tesla T4; 0.30 is free. [NO_CAPACITY]",
                "It should start in about 4m00s: the median of 12 earlier runs.",
            ],
        ),
        (
            {"displaced": [{"project": "red", "kind": "reclaim", "replicas": 2, "permille": 2000}]},
            [
                "It would start now on gpu1: 0.50 of GPU 0.",
                "2 replicas of red (2.00 GPU) would be evicted for it: their project is above its fair share.",
            ],
        ),
    ],
)
def test_plan_is_printed_in_sentences(changes: dict[str, Any], said: list[str]) -> None:
    assert [line.rstrip() for line in plan_lines(plan_view(**changes), Style())] == said
