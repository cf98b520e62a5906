"""Environments of workspaces from files: made with real tools of a local package, complete or not used at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import uv
from e2e_pool import PATIENCE_S, RealPool, eventually

from gpupool.node.files.workspace_session import CONDA_PROGRAMS
from local_channel import PROGRAM, write_channel
from local_wheel import WHEEL, write_wheel

pytestmark = pytest.mark.timeout(600)  # it only bounds a failing test, and machines may be busy
BUILD_TIMEOUT_S = 240.0
PROJECT = """\
[project]
name = "lab"
version = "0"
requires-python = ">=3.9"
dependencies = ["tinypkg"]

[tool.uv.sources]
tinypkg = {{ path = "{wheel}" }}
"""
VALUE = ("python", "-c", "import sys, tinypkg; print(tinypkg.VALUE, sys.prefix)")


@pytest.fixture
def pool(shared_pool: RealPool) -> Iterator[RealPool]:
    """Yield the shared pool; delete the workspaces of a test afterwards."""
    yield shared_pool
    shared_pool.clear()
    with shared_pool.client as client:
        for row in client.workspaces():
            assert eventually(lambda row=row: client.workspace(row.id).state == "stopped")
            client.delete_workspace(row.id)


@pytest.fixture
def project(pool: RealPool, tmp_path: Path) -> Path:
    """Return a folder with a locked project that needs a local package."""
    folder = pool.home / "project"
    folder.mkdir(exist_ok=True)
    write_wheel(pool.home)
    (folder / "pyproject.toml").write_text(PROJECT.format(wheel=pool.home / WHEEL))
    environment = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache")}
    words = [uv.find_uv_bin(), "lock", "--offline", "--python", sys.executable]
    subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True, timeout=PATIENCE_S)
    return folder


def home_of(pool: RealPool, name: str) -> Path:
    return pool.state / "workspaces" / pool.json("workspace", "show", name)["id"] / "home"


def test_uv_lock_makes_an_environment_that_copies_keep(pool: RealPool, project: Path) -> None:
    pool("workspace", "create", "bob", "-n", "0", "--env", str(project / "uv.lock"))
    started = pool("workspace", "start", "bob", timeout=BUILD_TIMEOUT_S).stderr.decode()
    assert "Creating the environment uv.lock" in started
    assert "tinypkg" in started, "the progress of uv is shown"
    value, prefix = pool.text("exec", "bob", "--", *VALUE).split()
    home = home_of(pool, "bob")
    assert (value, prefix) == ("42", str(home / ".venv"))
    assert (home / "environment/uv.lock").read_text() == (project / "uv.lock").read_text()
    script = home / ".venv/bin/greet"
    script.write_text(f"#!{home}/.venv/bin/python\nimport sys; print(sys.prefix)\n")
    script.chmod(0o755)
    pool("workspace", "stop", "bob")
    again = pool("workspace", "start", "bob", timeout=BUILD_TIMEOUT_S).stderr.decode()
    assert "Creating" not in again
    assert pool.text("exec", "bob", "--", *VALUE).split() == [value, prefix]
    pool("workspace", "stop", "bob")

    pool("workspace", "clone", "bob", "copy")
    pool("workspace", "start", "copy")
    theirs = str(home_of(pool, "copy") / ".venv")
    assert pool.text("exec", "copy", "--", *VALUE).split() == ["42", theirs]
    assert pool.text("exec", "copy", "--", "greet") == f"{theirs}\n", "scripts use the environment of the copy"


def test_requirements_are_installed_without_uv(pool: RealPool, tmp_path: Path) -> None:
    write_wheel(pool.home)
    (tmp_path / "requirements.txt").write_text(f"{pool.home / WHEEL}\n")
    pool("workspace", "create", "bob", "-n", "0", "--env", str(tmp_path / "requirements.txt"))
    pool("workspace", "start", "bob", timeout=BUILD_TIMEOUT_S)
    assert pool.text("exec", "bob", "--", *VALUE).split()[0] == "42"


def test_package_that_cannot_be_downloaded_is_reported(pool: RealPool, tmp_path: Path) -> None:
    """Nothing listens at the address of the index; after a correction the next start makes the environment."""
    wanted = tmp_path / "requirements.txt"
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        wanted.write_text(f"--index-url http://127.0.0.1:{bound.getsockname()[1]}/simple\nno-such-package\n")
        pool("workspace", "create", "bob", "-n", "0", "--env", str(wanted))
        failed = pool("workspace", "start", "bob", ok=False, timeout=BUILD_TIMEOUT_S)
    said = failed.stderr.decode()
    assert failed.returncode != 0
    assert "Connection refused" in said
    assert "The environment requirements.txt could not be made: 'python' ended with status 1" in said
    assert "connect the node to the network or name an index" in said
    assert "workspace bob did not start" in said
    home = home_of(pool, "bob")
    assert (home / ".venv.incomplete").exists()
    (home / "environment/requirements.txt").write_text("")
    with pool.client as client:
        assert eventually(lambda: client.workspace("bob").state == "stopped")
    pool("workspace", "start", "bob", timeout=BUILD_TIMEOUT_S)
    assert pool.text("exec", "bob", "--", "sh", "-c", "echo $VIRTUAL_ENV") == f"{home}/.venv\n"
    assert not (home / ".venv.incomplete").exists()


def test_killed_build_is_not_used_and_is_made_again(pool: RealPool, tmp_path: Path) -> None:
    """Pip waits for a build of a package, which is killed with its session; the half-made environment is not used."""
    package = pool.home / "slow"
    package.mkdir()
    started, go_on = pool.home / "started", pool.home / "go-on"
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    write_wheel(package)
    (package / "backend.py").write_text(
        "import os, shutil, time\n"
        "def build_wheel(folder, *rest):\n"
        f"    open({str(started)!r}, 'w').close()\n"
        f"    while not os.path.exists({str(go_on)!r}): time.sleep(0.05)\n"
        f"    shutil.copy({str(package / WHEEL)!r}, folder)\n"
        f"    return {WHEEL!r}\n"
    )
    (tmp_path / "requirements.txt").write_text(f"tinypkg @ file://{package}\n")
    pool("workspace", "create", "bob", "-n", "0", "--env", str(tmp_path / "requirements.txt"))
    pool("workspace", "start", "bob", "--detach")
    assert eventually(started.exists, BUILD_TIMEOUT_S)
    home = home_of(pool, "bob")
    assert (home / ".venv/bin/python").exists(), "half-made"
    assert pool.text("exec", "bob", "--", "sh", "-c", "echo [$VIRTUAL_ENV]") == "[]\n"
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if b"workspace_session.py" in (process / "cmdline").read_bytes() and (process / "cwd").readlink() == home:
                os.kill(int(process.name), signal.SIGKILL)
    with pool.client as client:
        assert eventually(lambda: client.workspace("bob").state == "stopped")
    assert (home / ".venv.incomplete").exists()
    go_on.touch()
    pool("workspace", "start", "bob", timeout=BUILD_TIMEOUT_S)
    assert pool.text("exec", "bob", "--", *VALUE).split()[0] == "42"
    assert not (home / ".venv.incomplete").exists()


CONDA = next(filter(None, map(shutil.which, CONDA_PROGRAMS)), None)


def create_with_conda(pool: RealPool, folder: Path, name: str, package: str) -> Path:
    """Create a stopped workspace whose environment has a package of a local channel; return its home."""
    assert CONDA is not None
    channel = folder / "channel"
    address = f"file://{channel}" if channel.exists() else write_channel(channel)
    (folder / "conda.yml").write_text(f"name: lab\nchannels: ['{address}']\ndependencies: [{package}]\n")
    pool("workspace", "create", name, "-n", "0", "--env", str(folder / "conda.yml"))
    home = home_of(pool, name)
    programs = home / ".local/bin"
    programs.mkdir(parents=True)
    (programs / Path(CONDA).name).symlink_to(CONDA)
    (home / ".condarc").write_text("solver: classic\nnotify_outdated_conda: false\n")  # needs no other package
    return home


@pytest.mark.skipif(CONDA is None, reason="needs micromamba, mamba or conda, of a channel that is not on each machine")
def test_conda_makes_an_environment_and_makes_it_again_in_a_copy(pool: RealPool) -> None:
    folder = pool.home / "conda"
    folder.mkdir()
    home = create_with_conda(pool, folder, "bob", PROGRAM)
    started = pool("workspace", "start", "bob", timeout=BUILD_TIMEOUT_S).stderr.decode()
    assert "Creating the environment conda.yml" in started
    assert pool.text("exec", "bob", "--", PROGRAM) == f"{home}/.venv\n"
    pool("workspace", "stop", "bob")
    pool("workspace", "clone", "bob", "copy")
    again = pool("workspace", "start", "copy", timeout=BUILD_TIMEOUT_S).stderr.decode()
    assert "An environment of conda must be made again." in again
    assert pool.text("exec", "copy", "--", PROGRAM) == f"{home_of(pool, 'copy')}/.venv\n"

    create_with_conda(pool, folder, "broken", "no-such-package")
    failed = pool("workspace", "start", "broken", ok=False, timeout=BUILD_TIMEOUT_S)
    assert failed.returncode != 0
    assert b"no-such-package" in failed.stderr
    assert b"The environment conda.yml could not be made" in failed.stderr


def test_file_that_cannot_be_used_is_refused(pool: RealPool, tmp_path: Path) -> None:
    missing = pool("workspace", "create", "bob", "--env", str(tmp_path / "uv.lock"), ok=False)
    assert b"uv.lock cannot be read" in missing.stderr
    (tmp_path / "uv.lock").write_text("version = 1\n")
    alone = pool("workspace", "create", "bob", "--env", str(tmp_path / "uv.lock"), ok=False)
    assert b"The environment uv.lock needs pyproject.toml." in alone.stderr
    inside = pool("workspace", "create", "bob", "--image", "tiny", "--env", "python", ok=False)
    assert b"not in a container image" in inside.stderr
    assert pool.json("workspace", "list")["workspaces"] == []
