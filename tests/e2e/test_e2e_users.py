"""Two accounts of one machine on one root pool cannot get at each other's work."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_pool import PATIENCE_S, RealPool, alive, eventually, fresh_pool, walk

from accounts import ANN, BOB, as_user
from gpupool.cli.fast import commands

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="two accounts need root"),
]

ASK_OWNER = "Ask an administrator of the pool."


@pytest.fixture(scope="module")
def shared() -> Iterator[RealPool]:
    with fresh_pool("1xT4") as made:
        yield made


class UnixHttp(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("pool")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(self._path))


def ask(pool: RealPool, uid: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Call the API once as an account; return the status and the JSON."""

    def call() -> list[Any]:
        connection = UnixHttp(pool.run / "api.sock")
        connection.request(
            method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
        with contextlib.suppress(ValueError):
            return [answer.status, json.loads(text)]
        return [answer.status, text]

    status, answer = as_user(uid, call)
    return status, answer


def submit(pool: RealPool, uid: int, *command: str, **more: Any) -> dict[str, Any]:
    body = {"command": list(command), "workdir": "/", "gpus": {"fraction": 0.1}, **more}
    status, answer = ask(pool, uid, "POST", "/v1/workloads", body)
    assert status in {200, 201}, answer
    return dict(answer)


def running(pool: RealPool, name: str) -> int:
    """Return the pid of its program."""
    assert pool.becomes(name, "running")
    with pool.client as client:
        assert eventually(lambda: client.detail(name).replicas[0].pid)
        return int(client.detail(name).replicas[0].pid or 0)


def test_jobs_run_as_their_user(shared: RealPool) -> None:
    script = (
        "id -u; id -g; id -G; umask; cat /proc/self/status | grep -i capeff; test -r /root/.profile || echo no root"
    )
    made = submit(shared, ANN, "sh", "-c", script)
    assert shared.becomes(made["name"], "succeeded")
    lines = shared.text("logs", made["name"]).split("\n")
    assert lines[0] == str(ANN)
    assert "0" not in lines[1:3], "not root's groups"
    assert "0000000000000000" in "".join(lines), "no capabilities"
    assert "no root" in lines


def test_files_and_secrets_of_pool_are_inaccessible(shared: RealPool) -> None:
    script = f"ls {shared.state} || echo closed; cat {shared.state}/pool.db >/dev/null || echo closed; env"
    made = submit(shared, ANN, "sh", "-c", script)
    assert shared.becomes(made["name"], "succeeded")
    out = shared.text("logs", made["name"])
    assert out.count("closed") == 2
    assert "GPUPOOL_TOKEN" not in out


def test_queue_is_visible_without_commands_and_output_of_others(shared: RealPool) -> None:
    made = submit(shared, ANN, "sh", "-c", "echo my secret words; exec sleep 1000", env={"PASSWORD": "hunter2"})
    pid = running(shared, made["name"])
    path = f"/v1/workloads/{made['id']}"
    assert eventually(
        lambda: (
            "my secret words" in json.dumps(ask(shared, ANN, "GET", f"{path}/logs"))
            or "bXkgc2VjcmV0" in json.dumps(ask(shared, ANN, "GET", f"{path}/logs"))
        )
    )
    for part in ("", "/logs", "/why"):
        status, answer = ask(shared, BOB, "GET", path + part)
        assert "hunter2" not in json.dumps(answer)
        assert "secret words" not in json.dumps(answer)
        assert "bXkgc2VjcmV0" not in json.dumps(answer)
        if part == "/logs":
            assert status == 403
    status, answer = ask(shared, BOB, "GET", "/v1/workloads")
    assert status == 200
    assert made["id"] in json.dumps(answer)
    assert "secret words" not in json.dumps(answer)
    assert alive(pid)


def test_work_of_another_user_cannot_be_changed(shared: RealPool) -> None:
    made = submit(shared, ANN, "sleep", "1000")
    pid = running(shared, made["name"])
    path = f"/v1/workloads/{made['id']}"
    for verb, body in (
        ("stop", {}),
        ("suspend", {}),
        ("signal", {"signal": 9}),
        ("signal", {"signal": "KILL"}),
        ("resume", {}),
        ("priority", {"priority": 9}),
    ):
        status, _ = ask(shared, BOB, "POST", f"{path}/{verb}", body)
        assert status in {403, 400, 422}, verb
    assert ask(shared, BOB, "POST", f"{path}/stop", {})[0] == 403
    assert ask(shared, BOB, "DELETE", path)[0] == 403
    assert alive(pid)
    assert ask(shared, ANN, "POST", f"{path}/stop", {"force": True})[0] == 200
    assert eventually(lambda: not alive(pid))


def test_lease_of_another_user_cannot_be_used(shared: RealPool) -> None:
    status, lease = ask(shared, ANN, "POST", "/v1/workloads", {"kind": "lease", "gpus": {"fraction": 0.2}})
    assert status in {200, 201}
    assert shared.becomes(lease["name"], "running")
    body = {"kind": "exec", "on": lease["id"], "command": ["id"], "workdir": "/"}
    assert ask(shared, BOB, "POST", "/v1/workloads", body)[0] == 403
    assert ask(shared, BOB, "POST", f"/v1/workloads/{lease['id']}/stop", {})[0] == 403
    assert ask(shared, ANN, "POST", "/v1/workloads", body)[0] in {200, 201}


def test_processes_and_sockets_of_others_are_inaccessible(shared: RealPool) -> None:
    made = submit(shared, ANN, "sh", "-c", "echo hidden; exec sleep 1000")
    pid = running(shared, made["name"])
    shepherd = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for target in (pid, shepherd, shared.pids()["agent"], shared.pids()["control-plane"]):
        assert as_user(BOB, lambda target=target: os.kill(target, signal.SIGTERM)).startswith("PermissionError")
        assert "Error" in as_user(BOB, lambda target=target: Path(f"/proc/{target}/environ").read_text())
    assert as_user(ANN, lambda: os.kill(shepherd, signal.SIGKILL)).startswith("PermissionError"), "not even its owner"
    sockets = [p for p in (*walk(shared.run), *walk(shared.state)) if p.is_socket()]
    attach = [p for p in sockets if p.name != "api.sock"]
    assert attach
    for path in attach:
        outcome = as_user(BOB, lambda path=path: connected(path))
        assert outcome == "refused", path
    assert alive(pid)
    assert alive(shepherd)


def connected(path: Path) -> str:
    """Return the answer to a HELLO on another user's socket."""
    from gpupool.domain.protocol import frames

    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.settimeout(PATIENCE_S)
        try:
            sock.connect(str(path))
            sock.sendall(frames.encode(frames.HELLO, b'{"version": 1, "rows": 24, "columns": 80, "stdin": true}'))
            data = sock.recv(1000)
        except TimeoutError:
            return "silent"
        except OSError:
            return "refused"
    return "refused" if not data else f"answered {data[:60]!r}"


def test_files_of_others_are_unreadable(shared: RealPool) -> None:
    made = submit(shared, ANN, "sh", "-c", "echo private output; exec sleep 1000")
    running(shared, made["name"])
    below = (folder for folder in walk(shared.state) if folder.name.startswith(made["id"]))
    files = [path for folder in below for path in walk(folder) if path.is_file()]
    assert files
    for path in files:
        assert as_user(BOB, lambda path=path: path.read_bytes().decode("latin-1")).startswith("PermissionError")
    done = subprocess.run(
        ["setpriv", f"--reuid={BOB}", f"--regid={BOB}", "--clear-groups", "ls", str(shared.state)],
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0


def test_private_folder_is_accessed_as_the_caller(shared: RealPool) -> None:
    private = shared.work / "anns"
    private.mkdir(mode=0o700)
    os.chown(private, ANN, ANN)
    mine = submit(shared, ANN, "touch", "made", workdir=str(private))
    assert shared.becomes(mine["name"], "succeeded")
    assert (private / "made").stat().st_uid == ANN
    others = submit(shared, BOB, "touch", "other", workdir=str(private), restart="never")
    assert shared.becomes(others["name"], "failed")
    assert not (private / "other").exists()


def test_only_root_administers(shared: RealPool) -> None:
    for method, path, body in (
        ("POST", "/v1/projects", {"name": "mine"}),
        ("PUT", "/v1/users/uid-54321", {"role": "admin"}),
        ("POST", "/v1/tokens", {"user": "root"}),
    ):
        status, _ = ask(shared, ANN, method, path, body)
        assert status in {403, 404, 405}, (method, path)
    assert ask(shared, ANN, "POST", "/v1/projects", {"name": "mine"})[0] == 403
    done = as_user(ANN, lambda: os.kill(json.loads((shared.run / "state.json").read_text())["pid"], signal.SIGTERM))
    assert "PermissionError" in done


def test_attach_to_program_of_another_user_is_refused(shared: RealPool) -> None:
    made = submit(shared, ANN, "sleep", "600")
    running(shared, made["name"])

    def attach() -> int:
        os.environ.update(shared.env)
        signal.alarm(int(PATIENCE_S))  # a hang ends this process, which then gives no answer
        return commands.attach_to_workload(made["name"], 0, tty=False, stdin=False)

    assert as_user(BOB, attach) == f"GpupoolError: {made['name']} belongs to uid-{ANN}. [FORBIDDEN]\n  {ASK_OWNER}"
    assert ask(shared, BOB, "GET", f"/v1/workloads/{made['name']}")[1]["manages"] is False
    assert ask(shared, ANN, "GET", f"/v1/workloads/{made['name']}")[1]["manages"] is True


def test_shared_snapshot_is_copied_to_files_of_the_other_account(shared: RealPool) -> None:
    def change(uid: int, path: str, body: Any) -> dict[str, Any]:
        status, answer = ask(shared, uid, "POST", path, body)
        assert status in {200, 201}, answer
        while answer["task"]:
            query = f"?task={answer['task']['id']}&timeout_s=20"
            _, answer = ask(shared, uid, "GET", f"/v1/workspaces/{answer['id']}{query}")
        return dict(answer)

    made = change(ANN, "/v1/workspaces", {"name": "course", "gpus": {"count": 0}})
    path = f"/v1/workspaces/{made['id']}"
    script = "cd; echo lesson > data; umask 077; echo mine > private"
    job = submit(shared, ANN, "sh", "-c", script, workspace="course")
    assert shared.becomes(job["id"], "succeeded")
    assert eventually(lambda: ask(shared, ANN, "GET", path)[1]["state"] == "stopped")
    change(ANN, f"{path}/snapshots", {"name": "start"})
    assert ask(shared, BOB, "POST", f"{path}/clone", {"name": "mine", "snapshot": "start"})[0] == 404
    change(ANN, f"{path}/snapshots/start/share", {"shared": True})
    listed = ask(shared, BOB, "GET", "/v1/workspaces")[1]
    assert (listed["workspaces"], [each["snapshot"] for each in listed["shared"]]) == ([], ["start"])
    cloned = change(BOB, f"{path}/clone", {"name": "mine", "snapshot": "start"})
    home = shared.state / "workspaces" / cloned["id"] / "home"
    assert {(each.name, each.stat().st_uid) for each in home.iterdir()} == {("data", BOB), ("private", BOB)}
    source = shared.state / "workspaces" / made["id"]
    for closed in (source / "home", source / "snapshots"):
        assert as_user(BOB, lambda closed=closed: len(list(closed.iterdir()))).startswith("PermissionError")
    assert as_user(ANN, lambda: len(list(home.iterdir()))).startswith("PermissionError"), "a copy: no way back"
