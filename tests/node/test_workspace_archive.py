"""Archives of homes: what is written comes back, and hostile or broken archives leave nothing."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpupool.node.files import workspace_archive
from gpupool.node.files.workspace_archive import ArchiveError

ABOUT = json.dumps({"name": "bob", "gpus": {"count": 1}})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Create an empty home."""
    made = tmp_path / "target"
    made.mkdir()
    return made


def archive_of(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    """Return a complete archive with these members, as another user may make it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for member, content in (*members, (tarfile.TarInfo("workspace.end"), b"")):
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return io.BytesIO(packed.getvalue())


def a_file(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), b"text"


def a_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member, b""


def test_files_of_each_kind_come_back(tmp_path: Path, home: Path) -> None:
    source = tmp_path / "source"
    (source / "folder/empty").mkdir(parents=True)
    (source / "folder/data").write_bytes(b"\0" * 100_000)
    (source / "folder/data").chmod(0o640)
    (source / "hard").hardlink_to(source / "folder/data")
    (source / "link").symlink_to("folder/data")
    (source / "outside").symlink_to("/etc/hostname")
    (source / "environment").mkdir()
    (source / "environment/requirements.txt").write_text("numpy\n")
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(source / "socket"))
        packed = io.BytesIO()
        workspace_archive.write(source, ABOUT, packed)
    packed.seek(0)
    with tarfile.open(fileobj=packed) as archive:
        first = archive.next()
        assert first is not None
        assert first.name == "workspace.json"
        text = archive.extractfile(first)
        assert text is not None
        assert json.load(text) == json.loads(ABOUT) | {"environment_files": {"requirements.txt": "numpy\n"}}
    (home / "environment").mkdir()  # made with the home
    packed.seek(0)
    workspace_archive.read(home, packed)
    assert sorted(path.name for path in home.iterdir()) == ["environment", "folder", "hard", "link", "outside"]
    assert (home / "folder/data").read_bytes() == b"\0" * 100_000
    assert (home / "folder/data").stat().st_mode & 0o777 == 0o640
    assert (home / "hard").samefile(home / "folder/data")
    assert (home / "link").readlink() == Path("folder/data")
    assert (home / "outside").readlink() == Path("/etc/hostname")
    assert (home / "folder/empty").is_dir()


@pytest.mark.parametrize(
    "members",
    [
        (a_file("home/../../evil"),),
        (a_link("home/out", "../.."), a_file("home/out/evil")),
        (a_link("home/out", "/"), a_file("home/out/evil-at-root")),
        (a_link("home/a", "../../.."), a_link("home/b", "a"), a_file("home/b/evil")),
    ],
)
def test_archive_that_writes_outside_is_refused(
    tmp_path: Path, home: Path, members: tuple[tuple[tarfile.TarInfo, bytes], ...]
) -> None:
    with pytest.raises(ArchiveError, match="outside"):
        workspace_archive.read(home, archive_of(a_file("home/good"), *members))
    assert list(home.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert not Path("/evil-at-root").exists()


def test_members_that_are_no_files_of_the_home_are_left_out(home: Path) -> None:
    device = tarfile.TarInfo("home/null")
    device.type, device.devmajor, device.devminor = tarfile.CHRTYPE, 1, 3
    workspace_archive.read(home, archive_of((device, b""), a_file("outside"), a_file("/etc/evil"), a_file("home/a")))
    assert [path.name for path in home.iterdir()] == ["a"]


def test_broken_archive_leaves_an_empty_home(home: Path) -> None:
    whole = archive_of(a_file("home/one"), a_file("home/two")).getvalue()
    for cut in (0, 700, 1024, 1500, 2048):
        with pytest.raises(ArchiveError):
            workspace_archive.read(home, io.BytesIO(whole[:cut]))
        assert list(home.iterdir()) == []
    with pytest.raises(ArchiveError):
        workspace_archive.read(home, io.BytesIO(b"junk" * 1000))
    assert list(home.iterdir()) == []


def test_home_with_files_is_not_changed(home: Path) -> None:
    (home / "mine").touch()
    with pytest.raises(ArchiveError, match="not empty"):
        workspace_archive.read(home, archive_of(a_file("home/a")))
    assert [path.name for path in home.iterdir()] == ["mine"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.needs("root")
def test_full_disk_leaves_an_empty_home(small_disk: Path) -> None:
    member = tarfile.TarInfo("home/large")
    with pytest.raises(ArchiveError, match="No space left"):
        workspace_archive.read(small_disk, archive_of(a_file("home/a"), (member, b"1" * (4 << 20))))
    assert list(small_disk.iterdir()) == []
