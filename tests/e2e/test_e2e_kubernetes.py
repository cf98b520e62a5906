"""Manifests on a real pool: applied, looked at as kubectl shows them, deleted."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from e2e_pool import PATIENCE_S, RealPool, eventually, fresh_pool

EXAMPLES = Path(__file__).parents[2] / "examples" / "kubernetes"
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: LABEL}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    command: [sh, -c, "SCRIPT"]
    env: [{name: ME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
"""


def manifest(name: str, script: str, label: str = "x") -> bytes:
    return POD.replace("NAME", name).replace("SCRIPT", script).replace("LABEL", label).encode()


def applied(pool: RealPool, text: bytes, *words: str, ok: bool = True) -> str:
    done = pool("apply", "-f", "-", "--no-container", *words, stdin=text, ok=ok)
    return (done.stdout if ok else done.stderr).decode()


@pytest.fixture(scope="module")
def pool() -> Iterator[RealPool]:
    with fresh_pool("2xT4") as made:
        yield made


@pytest.mark.needs("native")
def test_example_adds_vectors_on_half_a_gpu(pool: RealPool) -> None:
    pool("apply", "-f", str(EXAMPLES / "cuda-vector-add.yaml"), "--no-container")
    pool("wait", "pod/cuda-vector-add")
    assert pool.text("logs", "pod/cuda-vector-add").splitlines() == [
        "Tesla T4 (emulated) with 8192 MiB",
        "Vector addition of 50000 elements",
        "CUDA kernel launch with 196 blocks of 256 threads",
        "Test PASSED",
    ]
    pool("delete", "pod/cuda-vector-add")


def test_example_pods_and_jobs_run_and_are_listed(pool: RealPool) -> None:
    for name in ("pod", "job"):
        pool("apply", "-f", str(EXAMPLES / f"{name}.yaml"), "--no-container")
    pool("wait", "pod/hello", "job/squares")
    assert pool.text("logs", "pod/hello").startswith("hello from hello on ")
    rows = pool.text("get", "jobs", "--no-headers").split()
    assert rows[:3] == ["squares", "Complete", "6/6"]
    assert sorted(pool.text("logs", "-l", "app=squares").split("\n")[:-1]) == [
        f"squares-{i} | {i * i}" for i in range(6)
    ]
    assert pool.text("logs", "pod/squares-3") == "9\n"
    assert "pod/squares-5" in pool.text("get", "all")
    assert pool.text("get", "pods", "-l", "app=squares", "-o", "name").split() == [f"pod/squares-{i}" for i in range(6)]
    assert pool.text("get", "job", "squares", "-o", "jsonpath={.status.succeeded} {.spec.parallelism}") == "6 2"
    assert "Name:" in pool.text("describe", "job/squares")
    pool("delete", "pod/hello", "job/squares")
    assert pool("get", "job", "squares", ok=False).returncode == 125


def test_reapplied_file_is_unchanged_and_differences_are_refused_or_recreated(pool: RealPool) -> None:
    first = manifest("same", "echo one")
    assert applied(pool, first) == "pod/same created\n"
    pool("wait", "pod/same")
    assert applied(pool, first).startswith("pod/same unchanged (it has ended")
    other = manifest("same", "echo two")
    said = applied(pool, other, ok=False)
    assert re.search(r"standard input:3:12: pod 'same' already exists and differs in command", said), said
    assert applied(pool, other, "--force", "--dry-run=server") == "pod/same replaced (dry run)\n"
    assert pool.text("logs", "pod/same") == "one\n"
    assert applied(pool, other, "--force") == "pod/same replaced\n"
    pool("wait", "pod/same")
    assert pool.text("logs", "pod/same") == "two\n"


def test_faulty_file_is_not_applied(pool: RealPool) -> None:
    text = manifest("good", "true") + b"---\n" + manifest("bad", "true").replace(b"command", b"comand")
    said = applied(pool, text, ok=False)
    assert "standard input:20:5: There is no field 'spec.containers[0].comand'" in said
    assert pool("get", "pod", "good", ok=False).returncode == 125
    too_many = (
        manifest("good", "true")
        + b"---\n"
        + manifest("big", "true").replace(b"    env:", b"    resources: {limits: {nvidia.com/gpu: 64}}\n    env:")
    )
    assert "standard input:14:12: " in applied(pool, too_many, ok=False)
    assert pool("get", "pod", "good", ok=False).returncode == 125


def test_suspended_job_waits_for_a_changed_file(pool: RealPool) -> None:
    job = yaml.safe_load((EXAMPLES / "job.yaml").read_text())
    job["metadata"]["name"], job["spec"]["suspend"] = "later", True
    assert applied(pool, json.dumps(job).encode()) == "job.batch/later created\n"
    assert pool.text("get", "job", "later", "--no-headers").split()[1] == "Suspended"
    job["spec"]["suspend"] = False
    assert applied(pool, json.dumps(job).encode()) == "job.batch/later configured\n"
    pool("wait", "job/later")
    assert pool.text("get", "job", "later", "-o", "jsonpath={.status.conditions[0].type}") == "Complete"


def test_ended_jobs_are_deleted_after_their_ttl(pool: RealPool) -> None:
    job = yaml.safe_load((EXAMPLES / "job.yaml").read_text())
    job["metadata"]["name"], job["spec"]["ttlSecondsAfterFinished"] = "deleted-at-once", 0
    applied(pool, json.dumps(job).encode())
    assert eventually(lambda: pool("get", "job", "deleted-at-once", ok=False).returncode == 125)


def test_pods_are_followed_watched_and_deleted(pool: RealPool) -> None:
    watching = pool.begin("get", "pods", "-l", "app=long", "-w")
    applied(pool, manifest("long", "echo begun as $ME; sleep 100", "long"))
    assert eventually(lambda: "1/1" in pool.text("get", "pod", "long"))
    assert eventually(lambda: pool.text("logs", "--tail", "1", "pod/long") == "begun as long\n")
    assert "long" in pool.text("get", "pods", "-A").split()
    assert watching.stdout is not None
    assert any(re.search(rb"long +1/1 +Running", line) for line in watching.stdout)  # it looks once a second
    assert pool.text("delete", "pods", "-l", "app=long", "--grace-period=1") == 'pod "long" deleted\n'
    watching.terminate()
    watching.communicate(timeout=PATIENCE_S)
    gone = pool("delete", "-f", "-", stdin=manifest("long", "x"), ok=False)
    assert gone.returncode == 125
    assert pool("delete", "-f", "-", "--ignore-not-found=true", stdin=manifest("long", "x")).stdout == b""


def test_training_jobs_of_kubeflow_run_as_gangs(pool: RealPool) -> None:
    assert pool.text("apply", "-f", str(EXAMPLES / "tfjob.yaml"), "--no-container").endswith("tf-cluster created\n")
    pool("wait", "tfjob/tf-cluster")
    said = pool.text("logs", "tfjob/tf-cluster", "--role", "worker")
    assert "tf-cluster-worker-1 | worker 1 of {'ps': 1, 'worker': 2}" in said
    status = json.loads(pool.text("get", "tfjob", "tf-cluster", "-o", "json"))["status"]
    assert status["replicaStatuses"]["Worker"]["succeeded"] == 2
    assert pool.text("get", "tfjobs", "--no-headers").split()[:2] == ["tf-cluster", "Succeeded"]


def test_nodes_show_capacity_and_allocatable(pool: RealPool) -> None:
    node = json.loads(pool.text("get", "nodes", "-o", "json"))["items"][0]
    assert node["status"]["capacity"]["nvidia.com/gpu"] == "2"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"
    assert pool.all_free(), "what the tests before have ended"
    assert pool.text("get", "nodes", "--no-headers").split()[1:5] == ["Ready", "2", "2", "2.00"]
