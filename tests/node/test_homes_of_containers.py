"""Homes with files that other users of a rootless container have made: they belong to subordinate users.

The accounts of this machine are replaced in a mount namespace by one that has subordinate users.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_homes import homes_at, new_id, perform, remains, task

from accounts import ANN, as_user
from gpupool.domain.errors import GpupoolError
from gpupool.domain.work.workspace import TaskKind
from gpupool.node.files import workspace_archive
from gpupool.node.files.homes import Homes

pytestmark = [pytest.mark.root, pytest.mark.needs("root", "netns", "subordinate-users")]

SUBORDINATE = 700_000  # the first subordinate user
CLONE_NEWNS = 0x20000
SECRET = "of another user"


@pytest.fixture
def root() -> Iterator[Path]:
    """Yield the folder of homes, which belongs to the account; others can pass its parents."""
    parent = Path(tempfile.mkdtemp(prefix="gph", dir="/tmp"))
    parent.chmod(0o755)
    folder = parent / "workspaces"
    folder.mkdir(mode=0o700)
    os.chown(folder, ANN, ANN)
    yield folder
    shutil.rmtree(parent)


def as_account(folder: Path, act: Callable[[], Any], *, subordinate: bool = True) -> Any:
    """Return the result of ``act`` as an account with subordinate users, or without."""
    line = f"ann:{SUBORDINATE}:65536\n" if subordinate else ""
    accounts = f"{Path('/etc/passwd').read_text()}ann:x:{ANN}:{ANN}::{folder}:/bin/sh\n"
    files = {"/etc/passwd": accounts, "/etc/subuid": line, "/etc/subgid": line}
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            for number, (path, text) in enumerate(files.items()):
                (folder.parent / str(number)).write_text(text)
                subprocess.run(["mount", "--bind", folder.parent / str(number), path], check=True)
            os.write(write, json.dumps(as_user(ANN, act)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    return json.loads(answer)


def new_home(root: Path) -> tuple[str, Path]:
    """Create a home in which a container has made a folder of another user."""
    first = new_id()
    as_account(root, lambda: perform(homes_at(root), task(TaskKind.CREATE, first)))
    home = Homes.folder(homes_at(root), first).home
    for name, owner, mode in (("mine", ANN, 0o600), ("theirs", SUBORDINATE + 998, 0o600)):
        (home / name).mkdir(mode=0o700)
        (home / name / "data").write_text(SECRET)
        (home / name / "data").chmod(mode)
        for path in (home / name, home / name / "data"):
            os.chown(path, owner, owner)
    return first, home


def tried(homes: Homes, wanted: Any) -> str:
    """Return the code, the message and the hint of the error of a task; empty if it is complete."""
    try:
        perform(homes, wanted)
    except GpupoolError as error:
        return f"{error.code} {error.message} {error.hint}"
    return ""


def test_files_of_all_users_are_copied_and_deleted(root: Path) -> None:
    first, home = new_home(root)
    saved, second = new_id(), new_id()
    wanted = [
        task(TaskKind.SNAPSHOT, first, snapshot=saved),
        task(TaskKind.CLONE, second, source=first),
        task(TaskKind.RESTORE, first, snapshot=saved),
    ]
    for each in wanted:
        assert as_account(root, lambda each=each: tried(homes_at(root), each)) == ""
    folder = homes_at(root).folder(first)
    (home / "theirs/large").write_bytes(b"1" * 1_000_000)
    os.chown(home / "theirs/large", SUBORDINATE, SUBORDINATE)
    assert as_account(root, folder.used_bytes) > 1_000_000
    for copy in (folder.snapshot(saved), home, homes_at(root).folder(second).home):
        data = copy / "theirs/data"
        assert (data.read_text(), data.stat().st_uid) == (SECRET, SUBORDINATE + 998)
        assert (copy / "mine/data").stat().st_uid == ANN
    for workspace in (first, second):
        assert as_account(root, lambda each=workspace: tried(homes_at(root), task(TaskKind.DELETE, each))) == ""
    assert remains(root) == []


def test_without_subordinate_users_the_error_says_what_to_do_and_nothing_is_lost(root: Path) -> None:
    first, home = new_home(root)
    for each in (task(TaskKind.SNAPSHOT, first, snapshot=new_id()), task(TaskKind.CLONE, new_id(), source=first)):
        said = as_account(root, lambda each=each: tried(homes_at(root), each), subordinate=False)
        assert said.startswith("FORBIDDEN")
        assert "Permission denied" in said
        assert "Its files are unchanged." in said
        assert 'chown -R 0:0 "$HOME"' in said
    assert (home / "theirs/data").read_text() == SECRET
    assert as_account(root, lambda: tried(homes_at(root), task(TaskKind.DELETE, first)), subordinate=False) == ""
    assert not home.exists()


def export(home: Path) -> tuple[int, str]:
    """Export a home with the program of this machine; return its status, and its errors or the members."""
    words = ["/usr/bin/python3", str(home.parent / "archive.py"), "export", "{}"]
    done = subprocess.run(words, cwd=home, capture_output=True, check=False, env={"PATH": os.defpath})
    if done.returncode:
        return done.returncode, done.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        return 0, " ".join(member.name for member in archive)


@pytest.mark.parametrize("subordinate", [True, False])
def test_archive_has_files_of_all_users_or_the_export_fails(root: Path, subordinate: bool) -> None:
    _, home = new_home(root)
    script = home.parent / "archive.py"
    script.write_text(Path(workspace_archive.__file__).read_text())
    status, said = as_account(root, lambda: export(home), subordinate=subordinate)
    if subordinate:
        assert (status, "home/theirs/data" in said, "home/mine/data" in said) == (0, True, True), said
    else:
        assert status == 1
        assert f"{home}/theirs belongs to another user and cannot be read." in said
