"""Gangs on a real pool: the workers start together or not at all, join, go and come back together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from e2e_pool import RealPool, eventually, fresh_pool

FOREVER = ("--grace", "1s", "--", "sleep", "1000")


@pytest.fixture(scope="module")
def four() -> Iterator[RealPool]:
    """Yield four GPUs, two projects with a quota of two each; gangs with too few members are stale after a second."""
    with fresh_pool("4xT4") as made:
        for name in ("red", "blue"):
            made("project", "create", name, "--quota", "2", "--min-runtime", "1s")
        made("policy", "set", "--stale-gang", "1s")
        yield made


@pytest.fixture
def lab(four: RealPool) -> Iterator[RealPool]:
    yield four
    four.clear()


def replicas(pool: RealPool, name: str) -> list[dict[str, Any]]:
    listed = pool.json("describe", name)["replicas"]
    assert isinstance(listed, list)
    return listed


def running(pool: RealPool, name: str) -> int:
    return sum(row["state"] == "running" for row in replicas(pool, name))


def events(pool: RealPool, name: str, reason: str) -> list[dict[str, Any]]:
    return [event for event in pool.json("events", name)["events"] if event["reason"] == reason]


def test_all_workers_start_together_or_not_at_all(lab: RealPool) -> None:
    lab("submit", "wall", "-n", "2", "--interactive", *FOREVER)
    assert lab.becomes("wall", "running")
    lab("submit", "ddp", "-g", "1", "--workers", "3", "--within", "node", *FOREVER)
    lab("submit", "small", "-g", "1", "--", "true")  # what is free is not held back for the gang
    assert lab.becomes("small", "succeeded")
    assert running(lab, "ddp") == 0
    assert lab.json("why", "ddp")["sentence"]
    lab("stop", "wall")
    assert eventually(lambda: running(lab, "ddp") == 3)
    assert len({event["at"] for event in events(lab, "ddp", "GRANTED")}) == 1, "written together"
    shown = lab.json("describe", "ddp")["gang"]
    assert shown.items() >= {"workers": 3, "min": 3, "within": "node", "strict": False}.items()
    assert "3 workers that start together, preferably within one node" in lab.text("describe", "ddp")


def test_more_workers_join_when_gpus_become_free(lab: RealPool) -> None:
    lab("submit", "wall", "-n", "2", "--interactive", *FOREVER)
    assert lab.becomes("wall", "running")
    lab("submit", "elastic", "-g", "1", "--workers", "4", "--min-workers", "2", *FOREVER)
    assert eventually(lambda: running(lab, "elastic") == 2)
    lab("submit", "later", "-g", "1", *FOREVER)
    lab("stop", "wall")
    assert eventually(lambda: running(lab, "elastic") == 4), "before newer work"
    assert lab.state_of("later") == "queued"


def test_evicted_gang_stops_and_restarts_as_a_whole(lab: RealPool) -> None:
    lab("submit", "borrowed", "--project", "red", "-g", "1", "--workers", "4", *FOREVER)
    assert eventually(lambda: running(lab, "borrowed") == 4)
    lab("submit", "owned", "--project", "blue", "-n", "1", "--interactive", *FOREVER)
    assert lab.becomes("owned", "running")
    assert eventually(lambda: {row["state"] for row in replicas(lab, "borrowed")} == {"pending"})
    assert {event["index"] for event in events(lab, "borrowed", "PREEMPTED")} == {0, 1, 2, 3}
    lab("stop", "owned")
    assert eventually(lambda: running(lab, "borrowed") == 4), "it resumes by itself"
    assert all(row["attempt"] == 2 and row["failures"] == 0 for row in replicas(lab, "borrowed"))


def test_gang_without_member_for_long_restarts(lab: RealPool) -> None:
    """On a busy machine the second member may be back first; it then fails again, and is away for longer."""
    again = lab.work / "again"
    script = f"""
        if [ $GPUPOOL_INDEX = 0 ]; then
            [ $GPUPOOL_ATTEMPT = 1 ] || touch {again}
        else
            for _ in $(seq $((20 * GPUPOOL_ATTEMPT - 20))); do [ -e {again} ] && break; sleep 0.1; done
            [ -e {again} ] || exit $((2 + GPUPOOL_ATTEMPT))
        fi
        sleep 1000"""
    lab("submit", "limping", "-g", "1", "--workers", "2", "--grace", "1s", "--", "sh", "-c", script)
    assert eventually(again.exists)
    assert eventually(lambda: running(lab, "limping") == 2)
    assert replicas(lab, "limping")[0]["attempt"] == 2
    told = events(lab, "limping", "PREEMPTED")
    assert {event["index"] for event in told} == {0}
    assert all("Its gang needs at least 2 members; only 1 run" in event["message"] for event in told)


def test_succeeded_member_is_not_missing(lab: RealPool) -> None:
    script = "if [ $GPUPOOL_INDEX = 1 ]; then exit 0; fi; sleep 3"
    lab("submit", "uneven", "-g", "1", "--workers", "2", "--", "sh", "-c", script)
    assert lab.becomes("uneven", "succeeded")
    assert [row["attempt"] for row in replicas(lab, "uneven")] == [1, 1]


def test_gang_that_cannot_be_complete_ends(lab: RealPool) -> None:
    script = "if [ $GPUPOOL_INDEX = 1 ]; then exit 3; fi; sleep 1000"
    lab("submit", "broken", "-g", "1", "--workers", "2", "--restart", "never", "--", "sh", "-c", script)
    assert lab.becomes("broken", "failed")
    assert [row["reason"] for row in replicas(lab, "broken")] == ["GANG_INCOMPLETE", "EXITED"]


def test_options_override_gang_of_job_file(lab: RealPool) -> None:
    job = {
        "name": "filed",
        "command": ["sleep", "1000"],
        "gang": {"workers": 8, "min": 2, "within": "rack", "strict": True},
    }
    (lab.work / "gang.json").write_text(json.dumps(job))
    refused = lab("submit", "-f", "gang.json", ok=False)
    assert refused.returncode == 2 or b"IMPOSSIBLE_REQUEST" in refused.stderr, refused.stderr
    assert b"Nodes of one rack" in refused.stderr
    lab("submit", "-f", "gang.json", "--workers", "3", "--within-strictly", "node")
    assert eventually(lambda: running(lab, "filed") == 3)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--workers", "5"), b"IMPOSSIBLE_REQUEST"),
        (("--workers", "2", "--min-workers", "3"), b"INVALID_COUNT"),
        (("--workers", "2", "--completions", "4"), b"INVALID_REQUEST"),
        (("--min-workers", "2"), b"INVALID_REQUEST"),
        (("--workers", "2", "--within", "a", "--within-strictly", "b"), b"INVALID_REQUEST"),
    ],
)
def test_invalid_gang_is_refused(lab: RealPool, words: tuple[str, ...], code: bytes) -> None:
    refused = lab("submit", "odd", "-g", "1", *words, "--", "true", ok=False)
    assert refused.returncode != 0
    assert code in refused.stderr, refused.stderr
