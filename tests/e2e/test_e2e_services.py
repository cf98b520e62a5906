"""Services as people use them: replicas, readiness, updates without interruption, and control planes that die."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_pool import RealPool, eventually

from gpupool.domain.errors import ErrorCode, GpupoolError

SERVER = Path(__file__).parents[2] / "examples" / "services" / "openai_server.py"


@pytest.fixture
def pool(shared_pool: RealPool) -> Iterator[RealPool]:
    """Two free emulated GPUs; services are stopped first, because they start their replicas again."""
    yield shared_pool
    with shared_pool.client as client:
        for row in client.services():
            client.stop_service(row.id)
    shared_pool.clear()
    for row in shared_pool.json("service", "list")["services"]:
        shared_pool("service", "delete", row["id"], "--yes")
    shared_pool.delete_projects()


def serve(pool: RealPool, name: str, *options: str, server: tuple[str, ...] = ()) -> None:
    pool(
        "serve", name, "-p", "0.1", "--drain", "5s", *options, "--",
        sys.executable, str(SERVER), "--port", "{port}", *server,
    )  # fmt: skip


def becomes(pool: RealPool, name: str, state: str, ready: int | None = None) -> bool:
    def there() -> bool:
        with pool.client as client:
            found = client.service(name)
        return found.state == state and ready in {None, found.ready}

    return eventually(there)


def remove(pool: RealPool, *names: str) -> None:
    for name in names:
        pool("service", "stop", name)
        with pool.client as client:
            assert eventually(lambda name=name: not client.service(name).replicas)  # type: ignore[misc]
        assert eventually(lambda name=name: pool("service", "delete", name, "--yes", ok=False).returncode == 0)  # type: ignore[misc]


def ask(address: str, path: str = "/whoami") -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request("GET", path)
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found
    finally:
        connection.close()


def test_replicas_are_ready_after_their_check_and_answer_on_their_own_ports(pool: RealPool) -> None:
    serve(pool, "echo", "--replicas", "2", "--ready", "/health", "--model", "echo", server=("--load-s", "1"))
    with pool.client as client:
        first = client.service("echo")
        assert (first.state, first.ready, first.desired, first.models) == ("starting", 0, 2, ["echo"])
    assert becomes(pool, "echo", "ready", 2)
    found = pool.json("service", "describe", "echo")
    addresses = {each["address"] for each in found["replicas"]}
    assert len(addresses) == 2
    assert len({ask(address)["pid"] for address in addresses}) == 2
    [row] = pool.json("service", "list")["services"]
    assert (row["path"], row["state"]) == (f"/s/{row['project']}/echo/", "ready")
    assert {each["name"] for each in pool.json("ps")["workloads"]} == {"echo-r1-0", "echo-r1-1"}
    assert b"listening on port" in pool("service", "logs", "echo").stdout
    assert "echo-r1-1" in pool.text("service", "describe", "echo")
    remove(pool, "echo")
    assert pool.all_free()


def test_command_decides_if_a_replica_is_ready(pool: RealPool, tmp_path: Path) -> None:
    """The command gets the port and the environment of the replica; one check replaces the other in updates."""
    flag = tmp_path / "loaded"
    command = 'sh -c \'echo not loaded; test -e "$FLAG" && test "$PORT" = {port}\''
    serve(pool, "echo", "--ready-command", command, "-e", f"FLAG={flag}")
    with pool.client as client:
        assert eventually(lambda: client.service("echo").replicas[0].message.endswith("status 1: not loaded"))
        assert client.service("echo").ready == 0
        flag.touch()
        assert becomes(pool, "echo", "ready", 1)
        pool("service", "update", "echo", "--ready", "/health")
        assert becomes(pool, "echo", "ready", 1)
        definition = client.service("echo").definition
    assert definition is not None
    assert (definition["service"]["ready"]["http"], definition["service"]["ready"].get("command")) == ("/health", None)
    refused = pool("service", "update", "echo", "--ready-command", "sh -c 'open", ok=False)
    assert b"open quote" in refused.stderr
    remove(pool, "echo")


def test_replica_that_ends_is_started_again_with_its_service_name(pool: RealPool) -> None:
    serve(pool, "echo")
    assert becomes(pool, "echo", "ready", 1)
    [replica] = pool.json("service", "describe", "echo")["replicas"]
    os.kill(ask(replica["address"])["pid"], signal.SIGKILL)
    with pool.client as client:
        assert eventually(lambda: client.service("echo").replicas[0].restarts == 1)
    assert becomes(pool, "echo", "ready", 1)
    remove(pool, "echo")


def test_program_on_the_port_of_a_replica_is_not_taken_for_it(pool: RealPool) -> None:
    """Another program listens on the port that a replica asked for; the replica itself is not ready."""
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        pool(
            "serve", "taken", "-n", "0", "--port", str(port), "--", sys.executable, "-c",
            "import sys, time; print(sys.argv[1], flush=True); time.sleep(600)", "{port}",
        )  # fmt: skip
        with pool.client as client:
            assert eventually(lambda: "No process of the job listens" in client.service("taken").replicas[0].message)
            found = client.service("taken")
            assert found.ready == 0
            assert found.replicas[0].address != f"127.0.0.1:{port}"
    remove(pool, "taken")


def test_update_keeps_the_number_of_ready_replicas(pool: RealPool) -> None:
    serve(pool, "echo", "--replicas", "2", "-e", "VERSION=1")
    assert becomes(pool, "echo", "ready", 2)
    fewest, stop = [9], threading.Event()

    def watch() -> None:
        with pool.client as client:
            while not stop.is_set():
                fewest[0] = min(fewest[0], client.service("echo").ready)
                time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        pool("service", "update", "echo", "-e", "VERSION=2")
        assert becomes(pool, "echo", "ready", 2)
    finally:
        stop.set()
        watcher.join()
    assert fewest[0] == 2
    found = pool.json("service", "describe", "echo")
    assert (found["revision"], {each["revision"] for each in found["replicas"]}) == (2, {2})
    assert {ask(each["address"])["VERSION"] for each in found["replicas"]} == {"2"}
    pool("service", "undo", "echo")
    assert becomes(pool, "echo", "ready", 2)
    found = pool.json("service", "describe", "echo")
    assert {ask(each["address"])["VERSION"] for each in found["replicas"]} == {"1"}
    remove(pool, "echo")


def test_revision_that_cannot_start_is_given_up_with_its_reason(pool: RealPool) -> None:
    serve(pool, "echo")
    assert becomes(pool, "echo", "ready", 1)
    [before] = pool.json("service", "describe", "echo")["replicas"]
    pool("service", "update", "echo", "--ready-within", "3s", "--", "sleep", "600")
    with pool.client as client:
        assert eventually(lambda: "no replica became ready within 3s" in client.service("echo").failure)
        found = client.service("echo")
    assert (found.revision, found.target) == (1, 1)
    assert becomes(pool, "echo", "ready", 1)
    [after] = pool.json("service", "describe", "echo")["replicas"]
    assert after["workload"] == before["workload"]
    remove(pool, "echo")


def test_service_survives_a_killed_control_plane(own_pool: RealPool) -> None:
    pool = own_pool
    serve(pool, "echo", "--replicas", "2")
    assert becomes(pool, "echo", "ready", 2)
    before = {each["workload"] for each in pool.json("service", "describe", "echo")["replicas"]}
    pool.kill_child("control-plane")
    assert becomes(pool, "echo", "ready", 2)
    assert {each["workload"] for each in pool.json("service", "describe", "echo")["replicas"]} == before
    pool("service", "scale", "echo", "1")
    assert becomes(pool, "echo", "ready", 1)


def test_job_file_and_python_client_create_services(pool: RealPool) -> None:
    (pool.work / "service.yml").write_text(
        "kind: service\nname: filed\ngpus: {fraction: 0.1}\n"
        f"command: [{sys.executable}, {SERVER}, --port, '{{port}}']\n"
        "service: {replicas: 0..2, ready: {http: /health, within: 1m}, update: {drain: 2s}, model: filed}\n"
    )
    pool("serve", "-f", "service.yml")
    assert becomes(pool, "filed", "ready", 1)
    with pool.client as client:
        command = [sys.executable, str(SERVER), "--port", "{port}"]
        made = client.serve(
            "coded", command, gpus={"fraction": 0.1}, service={"replicas": 1, "update": {"drain": "2s"}}
        )
        assert becomes(pool, "coded", "ready", 1)
        assert client.scale_service("coded", 0, 3).min == 0
        definition = made.definition
        assert definition is not None
        assert client.update_service("coded", {**definition, "env": {"A": "1"}}).target == 2
        assert becomes(pool, "coded", "ready", 1)
    remove(pool, "filed", "coded")


@pytest.mark.parametrize(
    ("act", "code", "part"),
    [
        (lambda c: c.service("none"), ErrorCode.UNKNOWN_SERVICE, "no service 'none'"),
        (lambda c: c.serve("b", ["true"], service={"replicas": "4..2"}), ErrorCode.INVALID_COUNT, "4 to 2"),
        (lambda c: c.serve("b", []), ErrorCode.INVALID_REQUEST, "give the command"),
        (lambda c: c.serve("b" * 41, ["true"]), ErrorCode.INVALID_NAME, "too long"),
        (lambda c: c.serve("b", ["true"], restart="never"), ErrorCode.INVALID_REQUEST, "always restarted"),
        (lambda c: c.serve("b", ["true"], gpus=99), ErrorCode.IMPOSSIBLE_REQUEST, ""),
        (lambda c: c.submit(["true"], kind="service"), ErrorCode.INVALID_REQUEST, "gpupool serve"),
    ],
)
def test_wrong_requests_are_refused(pool: RealPool, act: Callable[[Any], object], code: ErrorCode, part: str) -> None:
    with pool.client as client, pytest.raises(GpupoolError) as found:
        act(client)
    assert found.value.code is code
    assert part in found.value.message + found.value.hint


def test_stopping_all_jobs_stops_services_too(own_pool: RealPool) -> None:
    serve(own_pool, "echo")
    assert becomes(own_pool, "echo", "ready", 1)
    own_pool("down", "--stop-jobs")
    own_pool.up()
    assert becomes(own_pool, "echo", "stopped", 0)
    assert own_pool.all_free()
    own_pool("service", "scale", "echo", "1")
    assert becomes(own_pool, "echo", "ready", 1)


def test_project_with_services_is_not_deleted(pool: RealPool) -> None:
    pool("project", "create", "lab")
    serve(pool, "kept", "--project", "lab")
    assert becomes(pool, "kept", "ready", 1)
    pool("service", "stop", "kept")
    with pool.client as client:
        assert eventually(lambda: not client.service("kept").replicas)
        assert eventually(lambda: not client.list(limit=1))
    assert b"The project lab has services: kept." in pool("project", "delete", "lab", ok=False).stderr
    remove(pool, "kept")
    pool("project", "delete", "lab")


DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: echo, annotations: {gpu-fraction: "0.1", gpupool/access: public}}
spec:
  replicas: 2
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: server
        command: [PYTHON, SERVER, --port, "8000"]
        ports: [{name: http, containerPort: 8000}]
        env: [{name: VERSION, value: "1"}]
        readinessProbe: {httpGet: {path: /health, port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec: {selector: {app: echo}, ports: [{port: 80, targetPort: http}]}
"""


def test_deployment_is_applied_updated_stopped_and_deleted(pool: RealPool, tmp_path: Path) -> None:
    file = tmp_path / "echo.yaml"
    text = DEPLOYMENT.replace("PYTHON", sys.executable).replace("SERVER", str(SERVER))

    def applied(content: str, *words: str) -> str:
        file.write_text(content)
        done = pool("apply", "-f", str(file), "--no-container", *words)
        return done.stdout.decode().strip()

    assert applied(text, "--dry-run") == "deployment.apps/echo created (dry run)"
    assert pool.json("service", "list")["services"] == []
    assert applied(text) == "deployment.apps/echo created"
    assert becomes(pool, "echo", "ready", 2)
    assert applied(text) == "deployment.apps/echo unchanged"
    found = pool.json("service", "describe", "echo")
    assert (found["access"], found["revision"]) == ("public", 1)
    assert {ask(each["address"])["VERSION"] for each in found["replicas"]} == {"1"}
    assert "echo  2/2" in pool.text("get", "deployments")
    assert {one["metadata"]["name"] for one in pool.json("get", "pods")["items"]} == {"echo-r1-0", "echo-r1-1"}
    assert pool.text("get", "deployment", "echo", "-o", "jsonpath={.status.readyReplicas}") == "2"
    assert "echo-r1-1" in pool.text("describe", "deployment/echo")
    assert "listening on port" in pool.text("logs", "deployment/echo")
    assert applied(text.replace("replicas: 2", "replicas: 1")) == "deployment.apps/echo configured"
    assert becomes(pool, "echo", "ready", 1)
    assert pool.json("service", "describe", "echo")["target"] == 1  # the same program
    assert applied(text.replace('value: "1"', 'value: "2"')) == "deployment.apps/echo configured"
    with pool.client as client:
        assert eventually(lambda: (client.service("echo").revision, client.service("echo").ready) == (2, 2))
    assert applied(text.replace("replicas: 2", "replicas: 0")) == "deployment.apps/echo configured"
    assert becomes(pool, "echo", "stopped")
    assert pool("delete", "-f", str(file)).stdout.decode().strip() == 'deployment.apps "echo" deleted'
    assert pool.json("service", "list")["services"] == []


def test_job_file_of_a_service_is_applied_and_submitted(pool: RealPool, tmp_path: Path) -> None:
    file = tmp_path / "service.yml"
    command = json.dumps([sys.executable, str(SERVER), "--port", "{port}"])
    text = f"kind: service\nname: echo\ngpus: {{fraction: 0.1}}\ncommand: {command}\nservice: {{replicas: 1}}\n"

    def applied(content: str, *words: str) -> str:
        file.write_text(content)
        return pool("apply", "-f", str(file), *words).stdout.decode().strip()

    assert applied(text, "--dry-run") == "service/echo created (dry run)"
    assert applied(text) == "service/echo created"
    assert becomes(pool, "echo", "ready", 1)
    assert applied(text, "--dry-run") == "service/echo unchanged (dry run)"
    assert applied(text) == "service/echo unchanged"
    assert applied(text.replace("replicas: 1", "replicas: 2")) == "service/echo configured"
    assert becomes(pool, "echo", "ready", 2)
    taken = pool("submit", "-f", str(file), ok=False)
    assert b"NAME_TAKEN" in taken.stderr
    remove(pool, "echo")
    assert pool("submit", "-f", str(file)).stdout.decode().strip() == "echo"
    assert becomes(pool, "echo", "ready", 2)
    remove(pool, "echo")


def test_token_of_a_service_is_accepted_with_each_kind_of_access(pool: RealPool) -> None:
    made = pool("serve", "echo", "-p", "0.1", "--", sys.executable, str(SERVER), "--port", "{port}")
    assert becomes(pool, "echo", "ready", 1)
    address = pool.text("service", "url", "echo").strip()
    assert "gpupool service token echo" in made.stderr.decode()
    token = pool.text("service", "token", "echo").strip()

    def status(headers: dict[str, str]) -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{address}whoami", headers=headers), timeout=20) as got:
                return int(got.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert eventually(lambda: status({"authorization": f"Bearer {token}"}) == 200)
    assert status({}) == 401
    pool("service", "token", "echo", "--delete-all")
    assert eventually(lambda: status({"authorization": f"Bearer {token}"}) == 401)


def test_replica_that_fails_shows_its_end_and_not_a_wait_for_gpus(pool: RealPool) -> None:
    pool("serve", "bad", "-p", "0.1", "--", sys.executable, "-c", "raise SystemExit(7)")

    def note() -> str:
        with pool.client as client:
            [replica] = client.service("bad").replicas or [None]
        return "" if replica is None else replica.message

    assert eventually(lambda: "exited with status 7" in note())
