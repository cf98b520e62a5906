"""Jobs that start with a clone of a git repository, and jobs that are deleted after their end."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from e2e_pool import RealPool, eventually


def git(folder: Path, *words: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    own |= {f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(["git", *words], cwd=folder, env=os.environ | own, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a repository with two commits and a branch."""
    folder = tmp_path / "model.git"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for version in ("one", "two"):
        (folder / "version").write_text(f"{version}\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", version)
    git(folder, "branch", "old", "HEAD~1")
    return folder


@pytest.mark.parametrize(("rev", "version"), [("", "two"), (",rev=old", "one"), (",rev=HEAD~1", None)])
def test_repository_is_in_the_folder(
    pool: RealPool, repository: Path, tmp_path: Path, rev: str, version: str | None
) -> None:
    source = f"repository=file://{repository},path=code{rev}"
    words = (
        "submit",
        "cloner",
        "-n",
        "0",
        "--workdir",
        str(tmp_path),
        "--git-sync",
        source,
        "--",
        "cat",
        "code/version",
    )
    if version is None:
        assert b"is not a branch, tag or commit" in pool(*words, ok=False).stderr
        return
    pool(*words)
    assert pool.becomes("cloner", "succeeded")
    assert pool.text("logs", "cloner") == f"{version}\n"


def test_tasks_share_one_clone_and_credentials_stay_out(pool: RealPool, repository: Path, tmp_path: Path) -> None:
    script = "cat model/version; ls -A; tr '\\0' ' ' < /proc/self/cmdline; env | grep -c SECRET"
    pool.env |= {"GITSYNC_PASSWORD": "SECRET", "GITSYNC_USERNAME": "SECRETIVE"}
    try:
        words = ("--completions", "3", "--git-sync", f"file://{repository}", "--", "sh", "-c", script)
        pool("submit", "many", "-n", "0", "--backoff-limit", "0", "--workdir", str(tmp_path / "work"), *words, ok=False)
        (tmp_path / "work").mkdir(exist_ok=True)
        pool("submit", "tasks", "-n", "0", "--workdir", str(tmp_path / "work"), "--restart", "never", *words)
        assert pool.becomes("tasks", "failed")  # by grep, which finds nothing
    finally:
        del pool.env["GITSYNC_PASSWORD"], pool.env["GITSYNC_USERNAME"]
    for index in range(3):
        lines = pool.text("logs", f"tasks/{index}").splitlines()
        assert lines[:2] == ["two", "model"]
        assert lines[-1].endswith("0")
        assert "SECRET" not in "".join(line for line in lines if "grep" not in line)
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["model"]


def test_failed_clone_names_the_repository(pool: RealPool, tmp_path: Path) -> None:
    source = f"file://{tmp_path}/missing"
    pool("submit", "lost", "-n", "0", "--restart", "never", "--git-sync", source, "--", "touch", str(tmp_path / "ran"))
    assert pool.becomes("lost", "failed")
    assert f"{source} was not cloned into missing" in pool("logs", "lost").stderr.decode() + pool.text("logs", "lost")
    assert not (tmp_path / "ran").exists()


def test_ended_workload_is_deleted(pool: RealPool) -> None:
    submitted = pool.text("submit", "soon-deleted", "-n", "0", "--ttl-after-finish", "1s", "--json", "--", "true")
    job = json.loads(submitted)["id"]  # an earlier test of this pool may have used the name
    gone = eventually(lambda: pool("describe", job, ok=False).returncode != 0, pause_s=0.5)
    assert gone, pool.text("describe", job)
    assert pool.json("ps", "-a", "--name", "soon-deleted")["workloads"] == []
