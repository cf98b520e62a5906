"""S3: more demand than GPUs waits in order, sees why, and can refuse to wait."""

from __future__ import annotations

import json
import re
import signal

from e2e_pool import PATIENCE_S, RealPool, eventually


def fill(pool: RealPool, name: str = "blocker", **options: str) -> None:
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", value)]
    pool("submit", name, "-n", "2", *words, "--no-preemptible", "--", "sleep", "1000")
    assert pool.becomes(name, "running")


def test_queued_jobs_wait_in_order_with_position_and_reason(pool: RealPool) -> None:
    fill(pool, "order", max_time="1h")
    for name in ("first", "second", "third"):
        pool("submit", name, "-n", "2", "--", "true")
    why = pool.json("why", "third")
    assert why["position"] == 3
    assert why["sentence"] in pool.text("ps")
    assert pool.json("why", "first")["estimate_s"] is not None, "the one before it has a time limit"
    assert "first" in pool.text("ps")
    pool("stop", "order")
    for name in ("first", "second", "third"):
        assert pool.becomes(name, "succeeded")
    with pool.client as client:
        starts = [client.get(name).refresh().view.started_at for name in ("first", "second", "third")]
    assert starts == sorted(starts)


def test_changed_priority_changes_order_and_is_recorded(pool: RealPool) -> None:
    fill(pool)
    for name in ("early", "late"):
        pool("submit", name, "-n", "2", "--", "sleep", "1000")
    pool("priority", "high", "late")
    assert pool.json("why", "late")["position"] == 1
    assert pool("priority", "high", "blocker", ok=False).returncode == 125, "it waits for nothing"
    (event,) = pool.json("audit", "--reason", "CHANGED", "--workload", "late", "--since", "1h")["events"]
    assert event["message"] == "priority 0 -> 100"
    lines = pool.text("audit", "--reason", "SUBMITTED", "--all", "--csv").splitlines()
    assert lines[0] == "at,actor,reason,workload,index,target,message,id"
    assert len(lines) > 3
    assert pool.json("audit", "--actor", "nobody-of-this-name")["events"] == []
    pool("stop", "blocker")
    assert pool.becomes("late", "running")


def test_zero_wait_and_queue_time_limit(pool: RealPool) -> None:
    fill(pool)
    refused = pool("run", "--no-wait", "--", "true", ok=False)
    assert refused.returncode == 125
    assert b"[" in refused.stderr
    late = pool("run", "--wait", "1s", "--", "true", ok=False)
    assert late.returncode == 125
    assert b"WAIT_EXPIRED" in late.stderr


def test_ctrl_c_in_the_queue_leaves_it(pool: RealPool) -> None:
    fill(pool, "queue-holder")
    client = pool.begin("run", "--name", "impatient", "--", "true")
    with pool.client as api:
        assert eventually(lambda: any(job.name == "impatient" for job in api.list()))
        client.send_signal(signal.SIGINT)
        assert client.wait(PATIENCE_S) == 130
        assert eventually(lambda: not [job for job in api.list() if job.name == "impatient" and not job.done()])


def test_killed_client_leaves_the_queue(pool: RealPool) -> None:
    fill(pool, "queue-holder2")
    client = pool.begin("run", "--name", "vanishing", "--", "true")
    with pool.client as api:
        assert eventually(lambda: any(job.name == "vanishing" for job in api.list()))
        client.kill()
        client.wait()
        assert eventually(lambda: not [job for job in api.list() if job.name == "vanishing" and not job.done()])


def test_sweep_gets_parameters_and_respects_parallelism(pool: RealPool) -> None:
    marks = pool.work / "sweep"
    marks.mkdir()
    script = (
        f'echo "$1 $GPUPOOL_INDEX $GPUPOOL_COMPLETIONS"; touch {marks}/run-$GPUPOOL_INDEX; ls {marks} | grep -c run; '
        f"sleep 0.2; rm {marks}/run-$GPUPOOL_INDEX"
    )
    pool(
        "submit",
        "sweep",
        "-g",
        "0.1",
        "--sweep",
        "lr=0.1,0.2,0.3",
        "--parallelism",
        "2",
        "--",
        "sh",
        "-c",
        script,
        "sh",
        "lr={lr}",
    )
    pool("wait", "sweep")
    seen = [pool.text("logs", f"sweep/{index}").splitlines() for index in range(3)]
    assert [lines[0] for lines in seen] == ["lr=0.1 0 3", "lr=0.2 1 3", "lr=0.3 2 3"]
    assert all(int(lines[1]) <= 2 for lines in seen)


def test_failed_trial_is_retried(pool: RealPool) -> None:
    mark = pool.work / "crashed"
    pool(
        "submit", "flaky", "-g", "0.1", "--", "sh", "-c", f"test -e {mark} && exit 0; touch {mark}; echo first; exit 1"
    )
    pool("wait", "flaky")
    detail = pool.json("describe", "flaky")
    assert detail["state"] == "succeeded"
    assert "first" in pool.text("logs", "--attempt", "1", "flaky")


def test_dependent_job_starts_after_its_dependency(pool: RealPool) -> None:
    pool("submit", "one", "-g", "0.1", "--restart", "never", "--", "sh", "-c", "sleep 0.3; exit 3")
    pool("submit", "two", "-g", "0.1", "--after", "one", "--", "true")
    pool("submit", "three", "-g", "0.1", "--after", "one:any", "--", "true")
    assert pool.becomes("two", "failed")
    assert pool.becomes("three", "succeeded")
    assert "DEPENDENCY_FAILED" in pool.text("events", "two")
    assert re.search(r"^After: +one$", pool.text("describe", "two"), re.MULTILINE)
    assert re.search(r"^After: +one:any$", pool.text("describe", "three"), re.MULTILINE)


def test_quota_limits_protected_work_and_training_may_exceed_it(pool: RealPool) -> None:
    pool("project", "create", "team-a", "--quota", "1")
    pool("submit", "dev", "--project", "team-a", "-g", "1", "--interactive", "--", "sleep", "1000")
    pool("submit", "dev2", "--project", "team-a", "-g", "0.5", "--interactive", "--", "sleep", "1000")
    pool("submit", "night", "--project", "team-a", "-g", "1", "--", "sleep", "1000")
    assert pool.becomes("dev", "running")
    assert pool.becomes("night", "running")
    assert pool.state_of("dev2") == "queued"
    assert "quota" in pool.text("why", "dev2").lower()
    assert "team-a" in pool.text("project", "list")


def test_cordoned_node_gets_no_new_work(pool: RealPool) -> None:
    node = pool.json("nodes")["nodes"][0]["name"]
    pool("cordon", node, "--reason", "new fans")
    try:
        pool("submit", "patient", "-g", "0.1", "--", "true")
        assert pool.state_of("patient") == "queued"
        assert json.loads(pool("why", "patient", "--json").stdout)["code"] == "NODE_CORDONED"
    finally:
        pool("uncordon", node)
    assert pool.becomes("patient", "succeeded")
