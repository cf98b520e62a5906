"""Containers from the command line: image import, run and submit with -i and -v, rules of projects, shells."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_images import archive_of
from container_pools import container_pool
from e2e_pool import RealPool, eventually

UID = 54_321


@pytest.fixture(scope="module")
def pool(container_store: Path) -> Iterator[RealPool]:
    with container_pool(container_store) as made:
        yield made


def test_image_is_imported_listed_run_and_removed(pool: RealPool, container_store: Path) -> None:
    archive = container_store / "lab.tar"
    shutil.copy(archive_of(container_store / "tree"), archive)
    assert pool("image", "import", str(archive), ok=False).returncode == 125  # a plain tar has no name
    pool("image", "import", str(archive), "--name", "lab:1")
    names = [image["name"] for image in pool.json("image", "list")["images"]]
    assert "localhost/lab:1" in names
    assert pool.text("run", "-i", "lab:1", "--", "echo", "in it") == "in it\n"
    pool("image", "remove", "lab:1")
    assert b"has no image" in pool("image", "remove", "lab:1", ok=False).stderr


def test_run_mounts_volumes_without_shell_environment(pool: RealPool) -> None:
    (pool.work / "here").write_text("word\n")
    said = pool.text(
        "run", "-i", "tiny:1", "-v", ".:/work:ro", "-w", "/work", "-e", "A=b", "--", "sh", "-c", "cat here; env"
    )
    lines = said.splitlines()
    assert lines[0] == "word"
    assert "A=b" in lines
    assert "GPUPOOL_ATTEMPT=1" in lines
    assert not any(line.startswith(("NO_COLOR=", "COLUMNS=")) for line in lines)
    assert pool("run", "-i", "tiny:1", "--", "sh", "-c", "exit 9", ok=False).returncode == 9
    assert pool.text("run", "-i", "tiny:1") == "hello \n"
    refused = pool("run", "-i", "tiny:1", "-v", "/etc:/x", "--", "true", ok=False)
    assert refused.returncode == 126
    assert b"cannot be a volume" in refused.stderr
    assert pool("run", "-v", "/tmp:/x", "--", "true", ok=False).returncode == 125


def test_exec_enters_container_of_submitted_job(pool: RealPool) -> None:
    pool("submit", "box", "-i", "tiny:1", "-p", "0.1", "--", "sh", "-c", "echo > /tmp/mark; echo ready; sleep 300")
    assert eventually(lambda: "ready" in pool.text("logs", "box", ok=False))
    assert "mark" in pool.text("exec", "box", "--", "ls", "/tmp")
    assert pool.json("describe", "box")["image"] == "tiny:1"
    pool("stop", "box")
    assert pool.becomes("box", "stopped")


def test_project_rules_limit_images_and_volumes(pool: RealPool) -> None:
    place = pool.folder / "data"
    place.mkdir(exist_ok=True)
    os.chown(place, UID, UID)
    pool("project", "create", "lab", "--images", "localhost/*", "--volumes", str(place))
    asked = ("run", "--project", "lab", "-i", "localhost/tiny:1")
    assert pool.text(*asked, "-v", f"{place}:/d", "--", "echo", "ok") == "ok\n"
    refused = pool(*asked, "-v", f"{pool.work}:/d", "--", "true", ok=False)
    assert b"does not allow volumes" in refused.stderr
    refused = pool("run", "--project", "lab", "-i", "docker.io/library/tiny:1", "--", "true", ok=False)
    assert b"does not allow the image" in refused.stderr


def test_home_of_a_workspace_is_mounted_and_stays(pool: RealPool) -> None:
    pool("workspace", "create", "box-home", "-n", "0", "--image", "tiny:1")
    pool("workspace", "start", "box-home")
    pool("exec", "box-home", "--", "sh", "-c", "echo kept > $HOME/data")
    pool("workspace", "stop", "box-home")
    pool("workspace", "start", "box-home")
    look = "cat $HOME/data; test $PWD = $HOME && echo home"
    assert pool.text("exec", "box-home", "--", "sh", "-c", look) == "kept\nhome\n"
    pool("workspace", "stop", "box-home")
    pool("workspace", "delete", "box-home", "--yes")


def test_workspace_with_a_missing_image_says_so_and_keeps_its_files(pool: RealPool, container_store: Path) -> None:
    pool("workspace", "create", "later", "-n", "0", "--image", "localhost/later:1")
    pool("submit", "fill", "--workspace", "later", "-n", "0", "--", "sh", "-c", "echo kept > data")
    assert pool.becomes("fill", "succeeded")
    with pool.client as client:
        assert eventually(lambda: client.workspace("later").state == "stopped")
        failed = pool("workspace", "start", "later", ok=False)
        assert failed.returncode != 0
        assert b"localhost/later:1" in failed.stderr
        assert b"IMAGE_FAILED" in failed.stderr
        assert eventually(lambda: client.workspace("later").state == "stopped")
    archive = container_store / "later.tar"
    shutil.copy(archive_of(container_store / "tree"), archive)
    pool("image", "import", str(archive), "--name", "localhost/later:1")
    pool("workspace", "start", "later")
    assert pool.text("exec", "later", "--", "sh", "-c", "cat $HOME/data") == "kept\n"
    pool("workspace", "stop", "later")
    pool("workspace", "delete", "later", "--yes")


def test_missing_image_has_its_own_reason(pool: RealPool) -> None:
    pool("submit", "imageless", "-i", "localhost/nowhere:3", "-p", "0.1", "--", "true")
    waited = pool("wait", "imageless", ok=False)
    ending = pool.json("describe", "imageless")["ending"]
    assert (ending["code"], ending["decided_by"]) == ("IMAGE_FAILED", "program")
    assert "localhost/nowhere:3" in ending["remedy"]
    assert "[IMAGE_FAILED]" in waited.stderr.decode()
    assert "[IMAGE_FAILED]" in pool.text("ps", "--all", env={**pool.env, "COLUMNS": "400"})
    runs = pool("run", "-i", "localhost/nowhere:3", "--", "true", ok=False)
    assert "[IMAGE_FAILED]" in runs.stderr.decode()
    runs = pool("run", "-i", "tiny:1", "--", "no-such-program", ok=False)
    assert "[IMAGE_FAILED]" not in runs.stderr.decode()


def test_repository_is_in_the_container(pool: RealPool) -> None:
    folder = pool.work / "code.git"
    own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    own |= {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    folder.mkdir()
    (folder / "version").write_text("one\n")
    script = "git init -q && git add . && git commit -qm one"
    subprocess.run(["sh", "-c", script], cwd=folder, env=os.environ | own, check=True)
    source = f"file://{folder}"
    pool("submit", "found", "-i", "tiny:1", "-n", "0", "--git-sync", source, "--", "cat", "code/version")
    assert pool.becomes("found", "succeeded")
    assert pool.text("logs", "found") == "one\n"
    pool("submit", "lost", "-i", "tiny:1", "-n", "0", "--restart", "never", "--git-sync", f"{source}x", "--", "true")
    assert pool.becomes("lost", "failed")
    assert f"{source}x was not cloned into code.gitx: fatal: " in pool.text("describe", "lost")
