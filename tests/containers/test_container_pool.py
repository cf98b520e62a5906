"""Containers from the command line: image import, run and submit with -i and -v, rules of projects, shells."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_images import archive_of

sys.path.append(str(Path(__file__).parents[1] / "e2e"))

from e2e_pool import RealPool, eventually, folder_for_pool

UID = 54_321


@pytest.fixture(scope="module")
def pool(container_store: Path) -> Iterator[RealPool]:
    with folder_for_pool() as folder:
        made = RealPool(folder, "1xT4")
        made.env["GPUPOOL_CONTAINER_STORE"] = str(container_store / "store")
        made.up()
        try:
            yield made
        finally:
            made.down("--stop-jobs")


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
    pool("exec", "box-home", "--", "sh", "-c", "echo kept > $HOME/data; echo lost > /tmp/data")
    pool("workspace", "stop", "box-home")
    pool("workspace", "start", "box-home")
    look = "cat $HOME/data; test $PWD = $HOME && echo home; test -e /tmp/data || echo gone"
    assert pool.text("exec", "box-home", "--", "sh", "-c", look) == "kept\nhome\ngone\n"
    pool("workspace", "stop", "box-home")
    pool("workspace", "delete", "box-home", "--yes")
