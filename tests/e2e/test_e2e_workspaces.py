"""Workspaces as people use them: files outlive sessions, sizes change, and killed processes lose nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from e2e_pool import RealPool, Terminal, eventually, walk


def files_of(pool: RealPool, name: str) -> str:
    """Return what the session's home has, read by a program on its GPUs."""
    return pool.text("exec", name, "--", "cat", "data")


def becomes(pool: RealPool, name: str, state: str) -> bool:
    with pool.client as client:
        return eventually(lambda: client.workspace(name).state == state)


def remove(pool: RealPool, *names: str) -> None:
    for name in names:
        pool("workspace", "stop", name, "--force", ok=False)
        assert becomes(pool, name, "stopped")
        pool("workspace", "delete", name, "--yes")


def test_files_stay_when_the_size_changes(pool: RealPool) -> None:
    pool("workspace", "create", "bob", "-p", "0.25")
    pool("workspace", "start", "bob")
    assert pool.text("exec", "bob", "--", "sh", "-c", "echo hello > data; pwd") == pool.text(
        "exec", "bob", "--", "sh", "-c", "echo $HOME"
    )
    assert pool.free_permille() == [750, 1000] or pool.free_permille() == [1000, 750]
    again = pool("workspace", "start", "bob", ok=False)
    assert b"bob is running; it must be stopped for 'start'" in again.stderr
    assert pool("workspace", "delete", "bob", "--yes", ok=False).returncode != 0
    pool("workspace", "stop", "bob")
    assert pool.all_free()
    assert pool("shell", "bob", ok=False).returncode != 0
    pool("workspace", "start", "bob", "-n", "2")
    assert pool.free_permille() == [0, 0]
    assert files_of(pool, "bob") == "hello\n"
    pool("workspace", "stop", "bob")
    pool("workspace", "unassign", "bob")
    pool("workspace", "start", "bob")
    assert pool.free_permille() == [1000, 1000]
    assert pool.text("exec", "bob", "--", "sh", "-c", "cat data; echo [$CUDA_VISIBLE_DEVICES]") == "hello\n[]\n"
    [row] = pool.json("workspace", "list")["workspaces"]
    assert (row["state"], row["session_gpus"]["count"], row["user"]) == ("running", 0, pool.json("whoami")["user"])
    remove(pool, "bob")
    assert pool.json("workspace", "list")["workspaces"] == []
    assert eventually(lambda: not [path for path in walk(pool.state / "workspaces") if path.is_file()])


def test_start_says_why_it_waits_and_what_an_interrupt_leaves(pool: RealPool) -> None:
    pool("submit", "all", "-n", "2", "--", "sleep", "1000")
    assert pool.becomes("all", "running")
    pool("workspace", "create", "later", "-n", "1")
    terminal = Terminal(pool, "workspace", "start", "later")
    terminal.expect(b"workspace later waits: ")
    terminal.send(b"\x03")
    terminal.expect(b"workspace later stays queued; stop it: 'gpupool workspace stop later'")
    assert terminal.wait() == 130
    pool("workspace", "stop", "later")
    terminal = Terminal(pool, "workspace", "start", "later")
    terminal.expect(b"workspace later waits: ")
    pool("stop", "all", "--force")
    terminal.expect(b"workspace later is running")
    assert terminal.wait() == 0
    pool("workspace", "stop", "later")
    asked = pool("workspace", "delete", "later", ok=False)
    assert asked.returncode != 0
    assert b"Delete later with its home" in asked.stderr
    remove(pool, "later")


def test_job_in_a_workspace_leaves_its_files_there(pool: RealPool) -> None:
    pool("workspace", "create", "lab")
    pool("submit", "write", "--workspace", "lab", "-n", "0", "--", "sh", "-c", "echo from-a-job > data")
    assert pool.becomes("write", "succeeded")
    assert becomes(pool, "lab", "stopped")
    pool("workspace", "snapshot", "lab", "first")
    pool("workspace", "clone", "lab", "copy", "--snapshot", "first")
    pool("workspace", "start", "copy", "-n", "0")
    assert files_of(pool, "copy") == "from-a-job\n"
    assert "first" in pool.text("workspace", "show", "lab")
    pool("submit", "change", "--workspace", "lab", "-n", "0", "--", "sh", "-c", "echo changed > data")
    assert pool.becomes("change", "succeeded")
    assert becomes(pool, "lab", "stopped")
    pool("workspace", "restore", "lab", "first", "--yes")
    pool("workspace", "start", "lab", "-n", "0")
    assert files_of(pool, "lab") == "from-a-job\n"
    remove(pool, "lab", "copy")


def test_shell_starts_in_the_home(pool: RealPool) -> None:
    pool("workspace", "create", "bob", "-n", "0")
    pool("workspace", "start", "bob")
    terminal = Terminal(pool, "shell", "bob")
    try:
        terminal.send(
            b"[ $PWD = $HOME ] && [ $HOME = $GPUPOOL_WORKSPACE_HOME ] && echo at-$((40+2)) | tee data; exit\n"
        )
        terminal.expect(b"at-42")
        assert terminal.wait() == 0
    finally:
        terminal.close()
    assert files_of(pool, "bob") == "at-42\n"
    remove(pool, "bob")


def test_environment_is_made_once_and_keeps_packages(pool: RealPool) -> None:
    pool("workspace", "create", "py", "-n", "0", "--env", "python")
    pool("workspace", "start", "py")
    assert eventually(lambda: b"The workspace is ready" in pool("logs", "py").stdout)
    code = "import sys; print(sys.prefix)"
    venv = pool.text("exec", "py", "--", "python", "-c", code).strip()
    assert venv.endswith("/home/.venv")
    pool("exec", "py", "--", "sh", "-c", "touch $VIRTUAL_ENV/installed")
    pool("workspace", "stop", "py")
    pool("workspace", "start", "py")
    assert eventually(lambda: b"The workspace is ready" in pool("logs", "py").stdout)
    assert b"Creating" not in pool("logs", "py").stdout
    assert pool("exec", "py", "--", "sh", "-c", "test -e $VIRTUAL_ENV/installed").returncode == 0
    remove(pool, "py")


@pytest.mark.parametrize("process", ["control-plane", "agent"])
def test_killed_processes_lose_no_files(pool: RealPool, process: str) -> None:
    """The control plane or the agent is killed while a workspace starts, stops and is copied."""
    pool("workspace", "create", "ws", "-n", "0")
    pool("submit", "fill", "--workspace", "ws", "-n", "0", "--", "sh", "-c", "seq 100000 > data; mkdir d; touch d/a")
    assert pool.becomes("fill", "succeeded")
    assert becomes(pool, "ws", "stopped")
    steps: list[tuple[tuple[str, ...], Callable[[], bool]]] = [
        (("snapshot", "ws", "one"), lambda: _ready(pool, "ws") and _snapshots(pool, "ws") <= {"one"}),
        (("clone", "ws", "copy"), lambda: all(_ready(pool, name) for name in _names(pool))),
        (("start", "ws"), lambda: becomes(pool, "ws", "running")),
        (("stop", "ws"), lambda: becomes(pool, "ws", "stopped")),
    ]
    for words, holds in steps:
        begun = pool.begin("workspace", *words)
        os.kill(killed := pool.pids()[process], signal.SIGKILL)
        begun.communicate(timeout=120)
        pool.wait_for_successor(process, killed)
        if words[0] in {"start", "stop"}:  # the command may not have reached the pool: give it again
            pool("workspace", *words, ok=False)
        assert eventually(holds), words
    for name in _names(pool):
        pool("workspace", "start", name, ok=False)
        assert becomes(pool, name, "running")
        assert files_of(pool, name).splitlines()[-1] == "100000"
    remove(pool, *_names(pool))


def _names(pool: RealPool) -> set[str]:
    return {row["name"] for row in pool.json("workspace", "list")["workspaces"]}


def _ready(pool: RealPool, name: str) -> bool:
    return bool(pool.json("workspace", "show", name)["state"] == "stopped")


def _snapshots(pool: RealPool, name: str) -> set[str]:
    return {each["name"] for each in pool.json("workspace", "show", name)["snapshots"]}
