"""Homes of workspaces: they outlive programs and agents, belong to one user, and change completely or not at all."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from node_harness import AS_ROOT, Node, RefusedError, eventually, spec

from gpupool.domain import ids
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.workspace import TaskKind
from gpupool.node.files import homes as homes_module
from gpupool.node.files.homes import Homes, HomeTask
from gpupool.node.runners.container.engine import ContainerEngine
from gpupool.node.runners.container.layers import ContainerLayers

OTHER_UID = 65_432
OWN = os.geteuid()


MADE = {"environment/uv.lock": "version = 1"}  # files of a new home


def new_id() -> str:
    return ids.workspace_id(secrets.randbits(ids.ID_BITS))


def task(kind: TaskKind, workspace: str, **fields: Any) -> HomeTask:
    return HomeTask(new_id(), kind, workspace, **fields)


def perform(homes: Homes, wanted: HomeTask) -> int:
    async def until_done() -> int:
        while (used := await homes.perform(wanted)) is None:
            pass
        return used

    return asyncio.run(until_done())


def homes_at(root: Path) -> Homes:
    def engine() -> ContainerEngine:
        raise AssertionError("These workspaces have no container.")

    return Homes(root, frozenset, ContainerLayers(engine, root / "layers"), shared=False)


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def remains(root: Path) -> list[str]:
    """Return what is left besides homes and snapshots."""
    found = [path.name for place in ("trash", "new") for path in (root / place).glob("*")]
    for folder in root.iterdir():
        if ids.is_workspace_id(folder.name):
            found += [p.name for p in folder.iterdir() if p.name not in {"home", "snapshots", "about.json"}]
    return found


# --- kill at every step ---------------------------------------------------------------------------------------------


def dies_at(step: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a child that is killed before its ``step``-th change on the disk; return whether it was."""
    child = os.fork()
    if child == 0:
        steps = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal steps
                steps += 1
                if steps == step:
                    os._exit(9)
                return function(*args, **kwargs)

            return call

        for owner, names in ((Path, ("rename", "mkdir")), (homes_module, ("write_json", "_sync", "_start"))):
            for name in names:
                if hasattr(owner, name):
                    setattr(owner, name, counted(getattr(owner, name)))
        homes_module.remove_tree = counted(homes_module.remove_tree)  # type: ignore[assignment]
        try:
            work()
        except BaseException:  # noqa: BLE001 - the parent must see it
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {0, 9}
    return status == 9


@pytest.mark.parametrize("kind", list(TaskKind))
def test_kill_at_any_step_leaves_old_or_new_files(tmp_path: Path, kind: TaskKind) -> None:
    step = 0
    while True:
        step += 1
        root = tmp_path / str(step)
        homes, first, saved = homes_at(root), new_id(), new_id()
        perform(homes, task(TaskKind.CREATE, first))
        home = homes.folder(first).home
        (home / "data").write_text("old")
        perform(homes, task(TaskKind.SNAPSHOT, first, snapshot=saved))
        (home / "data").write_text("new")
        second, target = new_id(), new_id()
        wanted = {
            TaskKind.CREATE: task(kind, second, files=(("uv.lock", "version = 1"),)),
            TaskKind.CLONE: task(kind, second, source=first),
            TaskKind.SNAPSHOT: task(kind, first, snapshot=target),
            TaskKind.DROP_SNAPSHOT: task(kind, first, snapshot=saved),
            TaskKind.RESTORE: task(kind, first, snapshot=saved),
            TaskKind.DELETE: task(kind, first),
        }[kind]
        died = dies_at(step, lambda wanted=wanted, root=root: homes_at(root)._perform(wanted))
        homes = homes_at(root)
        homes.recover()
        homes.empty_trash()
        assert not [name for name in remains(root) if name != "partial"], step
        folder = homes.folder(first)
        if kind is TaskKind.DELETE:
            assert not folder.path.exists() or contents(folder.home) == {"data": "new"}
        else:
            allowed = ({"data": "new"}, {"data": "old"}) if kind is TaskKind.RESTORE else ({"data": "new"},)
            assert contents(folder.home) in allowed, step
        for copy in (folder.snapshot(saved), homes.folder(second).home):
            assert not copy.exists() or contents(copy) in ({"data": "old"}, {"data": "new"}, MADE)
        assert not folder.snapshot(target).exists() or contents(folder.snapshot(target)) == {"data": "new"}
        perform(homes, wanted)  # the control plane asks again
        assert remains(root) in ([], ["partial"])
        changed = homes.folder(second).home if kind in {TaskKind.CREATE, TaskKind.CLONE} else folder.home
        assert folder.path.exists() is (kind is not TaskKind.DELETE)
        assert folder.snapshot(saved).exists() is (kind not in {TaskKind.DROP_SNAPSHOT, TaskKind.DELETE})
        if kind is not TaskKind.DELETE:
            files = {TaskKind.CREATE: MADE, TaskKind.RESTORE: {"data": "old"}}.get(kind, {"data": "new"})
            assert contents(changed) == files, step
        if kind is TaskKind.SNAPSHOT:
            assert contents(folder.snapshot(target)) == {"data": "new"}
        if not died:
            break
    assert step > 2


# --- full disk ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder on a disk of eight MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.root
@pytest.mark.skipif(not AS_ROOT, reason="mounting needs root")
@pytest.mark.parametrize("checked_before", [True, False])
def test_full_disk_leaves_the_old_files(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, *, checked_before: bool
) -> None:
    homes, first, saved = homes_at(small_disk / "workspaces"), new_id(), new_id()
    perform(homes, task(TaskKind.CREATE, first))
    home = homes.folder(first).home
    (home / "small").write_text("old")
    perform(homes, task(TaskKind.SNAPSHOT, first, snapshot=saved))
    (home / "large").write_bytes(b"1" * (5 << 20))
    if not checked_before:  # the disk fills while the copy is made
        monkeypatch.setattr(Homes, "_need_room", lambda self, size: None)
    for wanted in (task(TaskKind.SNAPSHOT, first, snapshot=new_id()), task(TaskKind.CLONE, new_id(), source=first)):
        with pytest.raises(GpupoolError) as caught:
            perform(homes, wanted)
        assert caught.value.code is ErrorCode.DISK_FULL
        assert caught.value.hint
    assert sorted(p.name for p in home.iterdir()) == ["large", "small"]
    assert contents(homes.folder(first).snapshot(saved)) == {"small": "old"}
    assert remains(small_disk / "workspaces") in ([], ["partial"])
    perform(homes, task(TaskKind.RESTORE, first, snapshot=saved))
    assert contents(home) == {"small": "old"}


# --- files ----------------------------------------------------------------------------------------------------------


def test_copy_keeps_links_modes_and_times_and_follows_nothing(tmp_path: Path) -> None:
    homes, first, saved = homes_at(tmp_path / "w"), new_id(), new_id()
    secret = tmp_path / "secret"
    secret.write_text("not yours")
    perform(homes, task(TaskKind.CREATE, first))
    home = homes.folder(first).home
    (home / "tool").write_text("#!/bin/sh")
    (home / "tool").chmod(0o750)
    os.utime(home / "tool", (1e9, 1e9))
    (home / "out").symlink_to(secret)
    (home / "same").hardlink_to(home / "tool")
    closed = home / "closed"
    closed.mkdir(mode=0o500)
    used = perform(homes, task(TaskKind.SNAPSHOT, first, snapshot=saved))
    copy = homes.folder(first).snapshot(saved)
    assert (copy / "out").readlink() == secret
    assert (copy / "tool").stat().st_mode & 0o777 == 0o750
    assert (copy / "tool").stat().st_mtime == 1e9
    assert (copy / "same").samefile(copy / "tool")
    assert copy.stat().st_mode & 0o777 == 0o700
    assert used == homes.folder(first).used_bytes()
    perform(homes, task(TaskKind.DELETE, first))
    assert remains(tmp_path / "w") == []
    assert secret.read_text() == "not yours"


@pytest.mark.parametrize("name", ["", "..", "../h3k9x2m4qp7", "w3k9x2m4qp7", "h3k9x2m4qp7/x", "h", None, 3])
def test_names_that_are_no_ids_are_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(GpupoolError) as caught:
        homes_at(tmp_path).folder(name)
    assert caught.value.code is ErrorCode.INVALID_NAME


# --- programs -------------------------------------------------------------------------------------------------------


def ask(node: Node, kind: TaskKind, workspace: str, **fields: Any) -> None:
    """Ask for a task until it is complete."""
    request = {"id": new_id(), "kind": kind.value, "workspace": workspace, "uid": None, **fields}
    eventually(lambda: node.ask("home_task", **request) is not None, "the home is changed")


def test_programs_find_the_files_of_earlier_ones_also_after_a_kill_of_the_agent(own_node: Node) -> None:
    workspace = new_id()
    ask(own_node, TaskKind.CREATE, workspace)
    writer = spec("pwd > place; echo $HOME > home", workspace=workspace, cwd="", env={})
    assert own_node.run_to_end(writer).status == 0
    own_node.down(9)
    own_node.up()
    reader = spec("cat place home", workspace=workspace, cwd="", env={})
    assert own_node.run_to_end(reader).status == 0
    home = own_node.state.path.parent / "workspaces" / workspace / "home"
    assert own_node.log(reader.key).decode().split() == [str(home), str(home)]
    assert home.stat().st_mode & 0o777 == 0o700
    ask(own_node, TaskKind.DELETE, workspace)
    with pytest.raises(RefusedError) as caught:
        own_node.start(spec("true", workspace=workspace, cwd="", env={}))
    assert caught.value.code == ErrorCode.NOT_FOUND


def test_home_in_use_is_not_copied(node: Node) -> None:
    workspace = new_id()
    ask(node, TaskKind.CREATE, workspace)
    program = spec("sleep 600", workspace=workspace, cwd="", env={})
    node.start(program)
    node.running(program.key)
    for kind, fields in ((TaskKind.SNAPSHOT, {"snapshot": new_id()}), (TaskKind.DELETE, {})):
        with pytest.raises(RefusedError) as caught:
            ask(node, kind, workspace, **fields)
        assert caught.value.code == ErrorCode.WRONG_STATE
    node.ask("stop", key=program.key, grace_s=0)
    node.ended(program.key)
    ask(node, TaskKind.SNAPSHOT, workspace, snapshot=new_id())


@pytest.mark.root
@pytest.mark.skipif(not AS_ROOT, reason="programs of other users need root")
def test_home_is_closed_to_other_users(node: Node) -> None:
    mine, theirs = new_id(), new_id()
    ask(node, TaskKind.CREATE, mine, uid=OTHER_UID, files=[["conda.yml", "name: lab"]])
    ask(node, TaskKind.CREATE, theirs, uid=OTHER_UID + 1)
    owner = spec(
        "echo secret > data; stat -c %u environment/conda.yml; cat data", workspace=mine, cwd="", env={}, uid=OTHER_UID
    )
    assert node.run_to_end(owner).status == 0
    assert node.log(owner.key, "out").split() == [str(OTHER_UID).encode(), b"secret"]
    home = node.state.path.parent / "workspaces" / mine / "home"
    thief = spec(f"cat {home}/data; ls {home.parent}", workspace=theirs, cwd="", env={}, uid=OTHER_UID + 1)
    assert node.run_to_end(thief).status != 0
    assert b"secret" not in node.log(thief.key)
    with pytest.raises(RefusedError) as caught:
        node.start(spec("true", workspace=mine, cwd="", env={}, uid=OTHER_UID + 1))
    assert caught.value.code == ErrorCode.FORBIDDEN
    clone = new_id()
    ask(node, TaskKind.CLONE, clone, uid=OTHER_UID + 1, source=mine)
    reader = spec("cat data; stat -c %u data", workspace=clone, cwd="", env={}, uid=OTHER_UID + 1)
    assert node.run_to_end(reader).status == 0
    assert node.log(reader.key, "out").split() == [b"secret", str(OTHER_UID + 1).encode()]
