"""Workspaces with an image keep what their sessions change in it; snapshots and clones are images."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_images import PODMAN, containers, import_image, podman, store_with_image
from container_pools import container_pool
from e2e_pool import RealPool, eventually

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.node.runners.container import layers
from gpupool.node.runners.container.engine import WORKSPACE_LABEL, ContainerEngine


@pytest.fixture(scope="module")
def container_store() -> Iterator[Path]:
    """Return a store without containers and images of other tests."""
    with store_with_image() as folder:
        yield folder


@pytest.fixture(scope="module")
def module_pool(container_store: Path) -> Iterator[RealPool]:
    with container_pool(container_store) as made:
        yield made


@pytest.fixture
def pool(module_pool: RealPool, container_store: Path) -> Iterator[RealPool]:
    """Yield a pool with the stopped workspace ``lab`` in the image ``tiny:1``; delete everything of it afterwards."""
    module_pool("workspace", "create", "lab", "-n", "0", "--image", "tiny:1")
    yield module_pool
    for row in module_pool.json("workspace", "list")["workspaces"]:
        module_pool("workspace", "stop", row["name"], ok=False)
        assert eventually(lambda: state_of(module_pool, row["name"]) == "stopped")  # noqa: B023 - used at once
        module_pool("workspace", "delete", row["name"], "--yes")
    assert eventually(lambda: not containers(container_store / "store"))
    assert layer_images(container_store) == []


def state_of(pool: RealPool, name: str) -> str:
    return str(pool.json("workspace", "show", name)["state"])


def layer_images(container_store: Path) -> list[str]:
    """Return the names of the images that workspaces keep."""
    listed = podman(container_store / "store", "images", "--format", "{{.Repository}}:{{.Tag}}").stdout.decode()
    return sorted(name for name in listed.split() if name.startswith(layers.NAMESPACE))


def files_of(store: Path, image: str) -> dict[str, str]:
    """Return the files in ``/tmp`` of an image."""
    folder = Path(podman(store, "image", "mount", image).stdout.decode().strip()) / "tmp"
    try:
        return {path.name: path.read_text() for path in folder.iterdir()}
    finally:
        podman(store, "image", "unmount", image)


def in_session(pool: RealPool, name: str, script: str, *options: str) -> str:
    """Run a script in a session of its own."""
    pool("workspace", "start", name, *options)
    try:
        return pool.text("exec", name, "--", "sh", "-c", script)
    finally:
        pool("workspace", "stop", name)


def test_files_outside_of_the_home_stay(pool: RealPool, container_store: Path) -> None:
    in_session(pool, "lab", "echo one > /tmp/data; echo mine > $HOME/data; rm /bin/greet", "-p", "0.25")
    assert in_session(pool, "lab", "cat /tmp/data $HOME/data; test -e /bin/greet || echo gone") == ("one\nmine\ngone\n")
    in_session(pool, "lab", "echo two >> /tmp/data")
    assert in_session(pool, "lab", "cat /tmp/data; test -e /bin/greet || echo gone") == "one\ntwo\ngone\n"
    assert pool.text("run", "-i", "tiny:1", "--", "greet", "all") == "hello all\n", "the image itself is unchanged"
    assert eventually(lambda: len(layer_images(container_store)) == 1)
    assert "gpupool-workspace" not in pool.text("image", "list")


def test_variables_of_a_session_are_not_kept(pool: RealPool, container_store: Path) -> None:
    pool("submit", "job", "--workspace", "lab", "-n", "0", "-i", "tiny:1", "-e", "TOKEN=s3cret", "--", "true")
    pool("wait", "job")
    assert eventually(lambda: layer_images(container_store))
    [image] = layer_images(container_store)
    inspected = podman(container_store / "store", "image", "inspect", image).stdout
    assert b"s3cret" not in inspected
    assert b"GPUPOOL_ATTEMPT=1" not in inspected
    assert json.loads(inspected)[0]["Config"]["Cmd"]
    variables = in_session(pool, "lab", "env")
    assert "TOKEN" not in variables
    assert "GPUPOOL_ATTEMPT" in variables


def test_snapshots_and_clones_have_the_files(pool: RealPool, container_store: Path) -> None:
    pool("workspace", "snapshot", "lab", "empty")
    in_session(pool, "lab", "echo one > /tmp/data")
    pool("workspace", "snapshot", "lab", "first")
    in_session(pool, "lab", "echo two > /tmp/data")
    pool("workspace", "clone", "lab", "copy")
    pool("workspace", "clone", "lab", "older", "--snapshot", "first")
    pool("workspace", "restore", "lab", "first", "--yes")
    assert in_session(pool, "lab", "cat /tmp/data") == "one\n"
    assert in_session(pool, "copy", "cat /tmp/data") == "two\n"
    assert in_session(pool, "older", "cat /tmp/data") == "one\n"
    pool("workspace", "drop-snapshot", "lab", "first", "--yes")
    pool("workspace", "restore", "lab", "empty", "--yes")
    assert in_session(pool, "lab", "test -e /tmp/data || echo none") == "none\n"
    assert in_session(pool, "older", "cat /tmp/data") == "one\n"


def test_other_users_cannot_start_the_image(pool: RealPool, container_store: Path) -> None:
    in_session(pool, "lab", "echo private > /tmp/data")
    assert eventually(lambda: layer_images(container_store))
    [image] = layer_images(container_store)
    refused = pool("run", "-i", image, "--", "cat", "/tmp/data", ok=False)
    assert b"is kept for workspaces" in refused.stderr
    assert b"private" not in refused.stdout
    assert b"is kept for workspaces" in pool("image", "remove", image, ok=False).stderr


def test_image_that_claims_to_be_of_a_workspace_is_not_saved_there(pool: RealPool, container_store: Path) -> None:
    workspace = pool.json("workspace", "show", "lab")["id"]
    in_session(pool, "lab", "echo mine > /tmp/data")
    labels = [f"LABEL={name}={value}" for name, value in ((WORKSPACE_LABEL, workspace), (layers.VARIABLES_LABEL, "{"))]
    import_image(container_store / "store", container_store / "tree", "localhost/liar:1", *labels)
    pool("submit", "liar", "-n", "0", "-i", "liar:1", "--", "sleep", "1000")
    assert pool.becomes("liar", "running")
    filtered = ("ps", "--filter", f"label={WORKSPACE_LABEL}={workspace}", "--format", "{{.Names}}")
    assert eventually(lambda: containers(container_store / "store"))
    assert podman(container_store / "store", *filtered).stdout == b""
    pool("stop", "liar", "--force")
    assert in_session(pool, "lab", "cat /tmp/data") == "mine\n"
    pool("workspace", "create", "of-liar", "-n", "0", "--image", "liar:1")
    in_session(pool, "of-liar", "echo kept > /tmp/data")
    assert in_session(pool, "of-liar", "cat /tmp/data") == "kept\n"


def test_files_survive_kills_at_the_end_of_a_session(pool: RealPool, container_store: Path) -> None:
    pool("workspace", "start", "lab")
    pool("exec", "lab", "--", "sh", "-c", "echo kept > /tmp/data")
    agent = pool.pids()["agent"]
    os.kill(agent, signal.SIGSTOP)  # the session ends while nobody can save its container
    [container] = containers(container_store / "store")
    podman(container_store / "store", "kill", container)
    pool.kill_child("agent")
    assert eventually(lambda: state_of(pool, "lab") == "stopped")
    assert in_session(pool, "lab", "cat /tmp/data") == "kept\n"


def labels_of(start: layers.LayeredStart) -> list[str]:
    """Return the options of a container of the workspace ``lab``, as the runner gives them."""
    labels = (*start.labels, (WORKSPACE_LABEL, "lab"))
    return [word for name, value in labels for word in ("--label", f"{name}={value}")]


FAILS_WHILE_FULL = """#!/bin/sh
for word; do
    if [ "$word" = commit ] && [ -e {full} ]; then
        echo "Error: writing blob: write /x: no space left on device" >&2
        exit 125
    fi
done
exec {podman} "$@"
"""


def test_full_disk_keeps_the_container_until_it_can_be_saved(container_store: Path, tmp_path: Path) -> None:
    store, full, program = container_store / "store", tmp_path / "full", tmp_path / "podman"
    program.write_text(FAILS_WHILE_FULL.format(full=shlex.quote(str(full)), podman=PODMAN))
    program.chmod(0o755)
    options = ("--root", str(store / "storage"), "--runroot", str(store / "run"))
    engine = ContainerEngine("podman", str(program), "", options)
    kept = layers.ContainerLayers(lambda: engine, tmp_path / "layers")
    start = kept.start("lab", "tiny:1", "localhost/tiny:1", ())
    labels = labels_of(start)
    podman(store, "create", "--name", "gpupool-w1.0.1", *labels, start.image, "true")
    (tmp_path / "file").write_text("mine")
    podman(store, "cp", str(tmp_path / "file"), "gpupool-w1.0.1:/tmp/file")
    full.touch()
    for _ in range(2):
        with pytest.raises(GpupoolError, match=r"cannot save what the last session changed.*no space left") as refused:
            kept.start("lab", "tiny:1", "localhost/tiny:1", ())
        assert refused.value.code is ErrorCode.DISK_FULL
        assert containers(store) == ["gpupool-w1.0.1"]
    full.unlink()
    assert kept.start("lab", "tiny:1", "localhost/tiny:1", ("w1.0.1",)).image == "localhost/tiny:1", "it runs"
    image = kept.start("lab", "tiny:1", "localhost/tiny:1", ()).image
    assert containers(store) == []
    assert files_of(store, image) == {"file": "mine"}
    kept.delete("lab")
    assert layer_images(container_store) == []


def test_many_sessions_are_merged_into_one_layer(
    container_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "MAX_LAYERS", 3)
    store = container_store / "store"
    options = ("--root", str(store / "storage"), "--runroot", str(store / "run"))
    engine = ContainerEngine("podman", str(PODMAN), "", options)
    kept = layers.ContainerLayers(lambda: engine, tmp_path / "layers")
    counts = []
    for number in range(6):
        start = kept.start("lab", "tiny:1", "localhost/tiny:1", ())
        labels = labels_of(start)
        podman(store, "create", "--name", f"gpupool-w1.0.{number}", *labels, start.image, "true")
        (tmp_path / "file").write_text(str(number))
        podman(store, "cp", str(tmp_path / "file"), f"gpupool-w1.0.{number}:/tmp/file{number}")
        image = kept.start("lab", "tiny:1", "localhost/tiny:1", ()).image
        shown = podman(store, "image", "inspect", "--format", "{{len .RootFS.Layers}}", image)
        counts.append(int(shown.stdout))
    assert counts == [2, 3, 1, 2, 3, 1]
    assert files_of(store, image) == {f"file{number}": str(number) for number in range(6)}
    kept.delete("lab")
    assert layer_images(container_store) == []
