"""Effects of the end of one member on the others, on real nodes with small programs."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

import pytest
from machines_harness import Machines, eventually

TELL = "echo $GPUPOOL_ROUND/$RANK/$WORLD_SIZE; "
FOREVER = "exec sleep 1000"


def gang(pool: Machines, name: str, script: str, *words: str, workers: int = 3) -> None:
    pool("submit", name, "-g", "1", "--grace", "1s", "--workers", str(workers), *words, "--", "sh", "-c", script)


def rows(pool: Machines, name: str) -> list[dict[str, Any]]:
    found = pool.get(f"workloads/{name}")["replicas"]
    assert isinstance(found, list)
    return found


def states(pool: Machines, name: str) -> list[str]:
    return [row["state"] for row in rows(pool, name)]


def running_attempts(pool: Machines, name: str) -> list[int]:
    return [row["attempt"] for row in rows(pool, name) if row["state"] == "running"]


def round_of(pool: Machines, name: str) -> int:
    return int(pool.get(f"workloads/{name}")["gang"]["round"])


def test_gang_restarts_together_and_counts_one_failure(pool: Machines) -> None:
    script = TELL + "[ $RANK$GPUPOOL_ROUND = 11 ] && exit 3; [ $GPUPOOL_ROUND = 2 ] || " + FOREVER
    gang(pool, "again", script, "--framework", "torch", "--backoff-limit", "1")
    assert pool.becomes("again", "succeeded", "failed")
    assert states(pool, "again") == ["succeeded"] * 3
    assert [(row["attempt"], row["failures"]) for row in rows(pool, "again")] == [(2, 0), (2, 1), (2, 0)]
    assert pool.text("logs", "again", "--rank", "2") == "2/2/3\n"
    told = [e for e in pool.json("events", "again")["events"] if e["reason"] == "GANG_RESTART"]
    assert any("again-1: exited with status 3; all members restart together" in event["message"] for event in told)


def test_succeeded_member_takes_part_in_restart(pool: Machines) -> None:
    script = "[ $RANK = 0 ] && exit 0; sleep 1; [ $GPUPOOL_ROUND = 2 ] || exit 4"
    gang(pool, "late", script, "--framework", "torch", "--backoff-limit", "2", workers=2)
    assert pool.becomes("late", "succeeded", "failed")
    assert [(row["state"], row["attempt"]) for row in rows(pool, "late")] == [("succeeded", 2)] * 2


def test_failures_of_gang_members_are_added_up(pool: Machines) -> None:
    """Each round another rank fails: none has used up its tries, the gang has."""
    script = "[ $((RANK + 1)) = $GPUPOOL_ROUND ] && exit 7; " + FOREVER
    gang(pool, "worn", script, "--framework", "torch", "--backoff-limit", "1")
    assert pool.becomes("worn", "failed")
    assert [row["reason"] for row in rows(pool, "worn")] == ["GANG_INCOMPLETE", "BACKOFF_EXHAUSTED", "GANG_INCOMPLETE"]
    assert pool("wait", "worn", ok=False).returncode == 7, "one exit status"


def test_policy_fail_ends_gang_with_first_status(pool: Machines) -> None:
    script = "[ $RANK = 1 ] && exit 9; " + FOREVER
    gang(pool, "strict", script, "--framework", "torch", "--on-member-end", "fail")
    assert pool.becomes("strict", "failed")
    assert {row["attempt"] for row in rows(pool, "strict")} == {1}
    assert pool("wait", "strict", ok=False).returncode == 9


def test_elastic_gang_continues_with_fewer_members_after_node_loss(pool: Machines) -> None:
    gang(pool, "elastic", TELL + FOREVER, "--framework", "torch", "--min-workers", "2", workers=4)
    assert eventually(lambda: states(pool, "elastic") == ["running"] * 4)
    gone, victim = pool.node_of("elastic", 1), pool.replica("elastic", 1)
    pool("cordon", gone)
    try:
        os.kill(victim["pid"], signal.SIGKILL)
        assert eventually(lambda: round_of(pool, "elastic") == 2)
        assert eventually(lambda: sorted(states(pool, "elastic")) == ["pending", "running", "running", "running"])
        assert eventually(lambda: len(re.findall(r"2/\d/3", pool.text("logs", "elastic", "--all"))) == 3)
    finally:
        pool("uncordon", gone)


def test_tensorflow_worker_restarts_with_its_rank(pool: Machines) -> None:
    script = "echo $TF_CONFIG; [ $GPUPOOL_ROLE$GPUPOOL_ROLE_INDEX$GPUPOOL_ATTEMPT = worker01 ] && exit 5; " + FOREVER
    words = ("--framework", "tf", "--ps", "1", "--chief")
    gang(pool, "served", script, *words, workers=3)
    assert eventually(
        lambda: [r["attempt"] for r in rows(pool, "served") if r["state"] == "running"] == [1, 1, 2, 1, 1]
    )
    assert round_of(pool, "served") == 1

    def told(attempt: int) -> str:
        return pool.text("logs", "served", "--role", "worker", "--rank", "2", "--attempt", str(attempt))

    assert eventually(lambda: told(2).endswith("\n"))
    first, second = (json.loads(told(attempt)) for attempt in (1, 2))
    assert first == second
    assert first["task"] == {"type": "worker", "index": 0}
    assert {name: len(hosts) for name, hosts in first["cluster"].items()} == {"chief": 1, "ps": 1, "worker": 3}


@pytest.mark.parametrize(("line", "state"), [("", "succeeded"), ("  successPolicy: AllWorkers\n", "running")])
def test_tfjob_ends_with_first_worker_unless_all_must_succeed(pool: Machines, line: str, state: str) -> None:
    """The roles are one parameter server and two workers; the second worker and the server never end by themselves."""
    name = f"tf-{state}"
    script = "[ $GPUPOOL_ROLE$GPUPOOL_ROLE_INDEX = worker0 ] && exit 0; exec sleep 1000"
    container = f"{{name: tensorflow, image: none, command: [sh, -c, '{script}']}}"
    template = f"{{spec: {{terminationGracePeriodSeconds: 1, containers: [{container}]}}}}"
    manifest = (
        "apiVersion: kubeflow.org/v1\nkind: TFJob\n"
        f"metadata: {{name: {name}}}\nspec:\n{line}  tfReplicaSpecs:\n"
        f"    PS: {{replicas: 1, template: {template}}}\n    Worker: {{replicas: 2, template: {template}}}\n"
    )
    pool("apply", "--no-container", "-f", "-", stdin=manifest.encode())
    assert eventually(lambda: pool.get(f"workloads/{name}")["counts"]["succeeded"] >= 1)
    assert pool.becomes(name, state)
    running = 0 if state == "succeeded" else 2  # a worker may end before the other members run
    assert eventually(lambda: pool.get(f"workloads/{name}")["counts"]["running"] == running)
    assert pool.get(f"workloads/{name}")["state"] == state


def test_jobs_on_a_node_get_different_ports_and_private_secrets(pool: Machines) -> None:
    launcher = {"name": "launcher", "command": ["sh", "-c", "env; echo all; sleep 1000"], "gpus": {"count": 0}}
    job = {"framework": "mpi", "gpus": {"fraction": 0.4}, "roles": [launcher, {"name": "worker", "replicas": 2}]}
    for name in ("one", "two"):
        pool("submit", "-f", "-", stdin=json.dumps({"name": name, "grace": "1s", **job}).encode())
    assert eventually(lambda: states(pool, "one") + states(pool, "two") == ["running"] * 6)
    ends = []
    for name in ("one", "two"):
        assert eventually(lambda n=name: pool.text("logs", n, "--role", "launcher").endswith("all\n"))
        told = pool.text("logs", name, "--role", "launcher")
        hosts = json.loads(re.search(r"GPUPOOL_GANG_HOSTS=(.*)", told).group(1))
        secret = re.search(r"GPUPOOL_GANG_SECRET=(\w+)", told).group(1)
        assert len(secret) == 32
        assert secret not in json.dumps(pool.get(f"workloads/{name}")) + pool.text("describe", name)
        ends += [tuple(end) for end in hosts.values()]
    assert len(set(ends)) == 4
