"""The parts: untrusted trees, complete or absent blobs, and folders created with a user's rights."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool.blobs import blob_store as keep_module
from gpupool.blobs.blob_store import BlobFolder
from gpupool.blobs.ignore import Ignored
from gpupool.blobs.materialize import make
from gpupool.blobs.run_as_user import call_as
from gpupool.blobs.scan import leads_out, scan
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import (
    MAX_ENTRIES,
    MAX_TREE_BYTES,
    FileTree,
    check_path,
    tree_from_bytes,
    user_space,
)
from gpupool.store.blobs import StoredBlobs

ADA, GRACE = user_space("ada"), user_space("grace")
SHA = hashlib.sha256(b"x").hexdigest()
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def refused(code: ErrorCode, act: Callable[[], object]) -> GpupoolError:
    with pytest.raises(GpupoolError) as caught:
        act()
    assert caught.value.code is code
    return caught.value


# -- manifests that lie ----------------------------------------------------------------------------------------------


def manifest(**rows: Any) -> bytes:
    return json.dumps({"version": 1, "files": [], "links": [], "folders": [], **rows}).encode()


def file(path: str, sha256: str = SHA, size: int = 1, mode: int = 0o644) -> list[object]:
    return [path, mode, 0, size, sha256]


@pytest.mark.parametrize(
    "rows",
    [
        {"files": [file("../out")]},
        {"files": [file("/etc/passwd")]},
        {"files": [file("a//b")], "folders": [["a", 0o755]]},
        {"files": [file("./a")]},
        {"files": [file("a\0b")]},
        {"files": [file("")]},
        {"files": [file("a"), file("a")]},
        {"files": [file("a/b")]},
        {"files": [file("a/b")], "links": [["a", "/etc"]]},
        {"files": [file("a"), file("a/b")]},
        {"files": [file("a")], "links": [["a", "x"]]},
        {"files": [file("a")], "folders": [["a", 0o755]]},
        {"files": [file("x" * 256)]},
        {"files": [file("a", mode=0o4755)]},
        {"files": [file("a", mode=True)]},
        {"files": [file("a", size=-1)]},
        {"files": [file("a", sha256="../../x")]},
        {"files": [file("a", sha256=SHA.upper())]},
        {"files": [["a"]]},
        {"links": [["a", ""]]},
        {"links": [["a", "b\0c"]]},
        {"folders": [["a/b", 0o755]]},
        {"version": 2},
        {"files": None},
    ],
)
def test_manifest_with_outside_paths_is_refused(rows: dict[str, Any]) -> None:
    refused(ErrorCode.INVALID_FILE, lambda: tree_from_bytes(manifest(**rows)))


def test_oversized_manifest_is_refused() -> None:
    refused(ErrorCode.TOO_LARGE, lambda: tree_from_bytes(manifest(files=[file("a", size=MAX_TREE_BYTES), file("b")])))
    many = [[f"f{n}", 0o755] for n in range(MAX_ENTRIES + 1)]
    refused(ErrorCode.TOO_LARGE, lambda: tree_from_bytes(manifest(folders=many)))
    refused(ErrorCode.INVALID_FILE, lambda: tree_from_bytes(b"[" * 100_000))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_invalid_manifest_is_refused(data: bytes) -> None:
    refused(ErrorCode.INVALID_FILE, lambda: tree_from_bytes(data))


@settings(deadline=None)
@given(st.text(max_size=60))
def test_accepted_path_stays_inside_the_folder(path: str) -> None:
    try:
        check_path(path)
    except (GpupoolError, UnicodeEncodeError):
        return
    assert os.path.normpath(f"/inside/{path}") == f"/inside/{path}"


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [("a", "b", False), ("a", "../b", True), ("d/a", "../b", False), ("d/a", "../../b", True), ("a", "/b", True),
     ("a", "d/../..", True), ("d/e/a", ".././../x", False), ("a", ".", False)],
)  # fmt: skip
def test_links_out_of_the_folder_are_refused(path: str, target: str, out: bool) -> None:
    assert leads_out(path, target) is out


# -- what stays behind: the same as git says -------------------------------------------------------------------------

NAMES = [
    "a",
    "b.log",
    "keep.log",
    "d/a",
    "d/b.log",
    "d/e/a",
    "d/e/c.txt",
    "out/x",
    "d/out/x",
    "x y",
    "#h",
    "!n",
    "f.tmp",
]
PATTERNS = [
    "*.log", "!keep.log", "/out/", "out/", "d/**/a", "**/e", "d/*", "?", "[ab]", "[!a]", "\\#h", "\\!n", "x y", "d/e/",
    "# words", "", "d/**", "e", "/d/e/c.txt", "!d/e", "*.t?p",
]  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.sampled_from(PATTERNS), max_size=6))
def test_ignore_patterns_match_git(tmp_path_factory: pytest.TempPathFactory, patterns: list[str]) -> None:
    folder = _git_folder(tmp_path_factory)
    text = "\n".join(patterns) + "\n"
    (folder / ".gitignore").write_text(text)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"],
        cwd=folder, capture_output=True, check=True,
    ).stdout.decode().split("\0")  # fmt: skip
    assert sorted(_kept(Ignored().more(text))) == sorted(set(listed) - {"", ".gitignore"})


_FOLDERS: list[Path] = []


def _git_folder(factory: pytest.TempPathFactory) -> Path:
    if not _FOLDERS:
        _FOLDERS.append(factory.mktemp("git"))
        subprocess.run(["git", "init", "-q", _FOLDERS[0]], check=True)
        for name in NAMES:
            (_FOLDERS[0] / name).parent.mkdir(parents=True, exist_ok=True)
            (_FOLDERS[0] / name).write_text("x")
    return _FOLDERS[0]


def _kept(ignored: Ignored) -> list[str]:
    found = []
    for name in NAMES:
        parts = name.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        if not any(ignored.leaves(folder, is_folder=True) for folder in above):
            found += [name] if not ignored.leaves(name, is_folder=False) else []
    return found


def test_file_changed_during_read_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    first = scan(str(tmp_path))
    (tmp_path / "a").write_bytes(b"two")
    os.utime(tmp_path / "a", ns=(0, first.files[0].mtime_ns))  # as a tool does that hides it
    assert scan(str(tmp_path), known=first.seen).files[0].sha256 == sha(b"two")


# -- keeping ---------------------------------------------------------------------------------------------------------


def test_blob_upload_resumes_at_its_offset(tmp_path: Path) -> None:
    folder, data = BlobFolder(tmp_path), os.urandom(1000)
    assert folder.have(ADA, sha(data), 1000) == -1
    assert folder.write(ADA, sha(data), 1000, 0, data[:400]) == 400
    assert BlobFolder(tmp_path).have(ADA, sha(data), 1000) == 400
    assert folder.write(ADA, sha(data), 1000, 0, data[:400]) == 400  # said twice
    assert folder.write(ADA, sha(data), 1000, 700, data[700:]) == 400  # out of order
    assert folder.write(ADA, sha(data), 1000, 400, data[400:]) == 1000
    assert folder.read(ADA, sha(data)) == data
    assert folder.have(GRACE, sha(data), 1000) == -1


def test_blob_with_wrong_digest_is_deleted(tmp_path: Path) -> None:
    folder = BlobFolder(tmp_path)
    refused(ErrorCode.INVALID_FILE, lambda: folder.write(ADA, SHA, 3, 0, b"abc"))
    assert folder.have(ADA, SHA, 3) == -1
    refused(ErrorCode.INVALID_REQUEST, lambda: folder.write(ADA, SHA, 3, 0, b"abcd"))
    for bad in ("../../../etc/passwd", "", "A" * 64):
        refused(ErrorCode.INVALID_REQUEST, lambda bad=bad: folder.read(ADA, bad))
        refused(ErrorCode.INVALID_NAME, lambda: folder.read("..", SHA))


def test_concurrent_writers_of_a_blob_agree(tmp_path: Path) -> None:
    folder, data = BlobFolder(tmp_path), os.urandom(64_000)
    held: list[int] = []

    def send() -> None:
        at = 0
        while at < len(data):
            at = folder.write(ADA, sha(data), len(data), at, data[at : at + 1000])
        held.append(at)

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held == [len(data)] * 6
    assert folder.read(ADA, sha(data)) == data


def test_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = SimpleNamespace(total=1 << 40, used=0, free=1 << 20)
    monkeypatch.setattr(keep_module.shutil, "disk_usage", lambda _: full)
    folder = BlobFolder(tmp_path)
    assert "full" in refused(ErrorCode.DISK_FULL, lambda: folder.put(ADA, b"data")).message
    refused(ErrorCode.DISK_FULL, lambda: folder.write(ADA, SHA, 1, 0, b"x"))


@root
def test_disk_full_during_write_is_reported_and_keeps_no_partial_file(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True)
    try:
        folder, data = BlobFolder(tmp_path / "blobs"), os.urandom(3_000_000)
        name = folder.put(ADA, data)
        (tmp_path / "source").mkdir()
        (tmp_path / "source/big").write_bytes(data)
        tree = scan(str(tmp_path / "source")).tree()
        assert tree.files[0].sha256 == name
        (small / "work").mkdir()
        write = lambda rights: make(tree, small / "work", lambda digest: folder.open(ADA, digest), rights)  # noqa: E731
        refused(ErrorCode.DISK_FULL, lambda: call_as(None, write))
    finally:
        subprocess.run(["umount", small], check=True)


def kept(folder: StoredBlobs, space: str, *contents: bytes, age_s: float = 0.0) -> str:
    """Create a whole tree of one user, last used a while ago."""
    files = [[f"f{n}", 0o644, 0, len(data), sha(data)] for n, data in enumerate(contents)]
    data = manifest(files=files)
    asyncio.run(folder.put(space, [*contents, data]))
    asyncio.run(folder.mark(space, sha(data)))
    for path in folder._folder.path.rglob("*"):
        if path.is_file() and path.name in {sha(data), *map(sha, contents)}:
            os.utime(path, (time.time() - age_s,) * 2)
    return sha(data)


def test_needed_blobs_stay_and_others_are_deleted_by_age_and_size(tmp_path: Path) -> None:
    store = StoredBlobs(tmp_path, most_bytes=20_000)
    live = kept(store, ADA, os.urandom(4000), age_s=99 * 86400)
    old = kept(store, ADA, os.urandom(2000), age_s=50 * 86400)
    recent = kept(store, ADA, shared := os.urandom(1000), age_s=2 * 86400)
    newest = kept(store, ADA, shared, os.urandom(500), age_s=86400)
    asyncio.run(store.sweep({ADA: {live}}))
    marks = {tree: asyncio.run(store.is_marked(ADA, tree)) for tree in (live, old, recent, newest)}
    assert marks == {live: True, old: False, recent: True, newest: True}
    assert [asyncio.run(store.have(ADA, [(sha(shared), 1000)]))] == [[1000]]
    refused(ErrorCode.NOT_FOUND, lambda: asyncio.run(store.tree(ADA, old)))


def test_user_uses_at_most_half_of_the_store(tmp_path: Path) -> None:
    store = StoredBlobs(tmp_path, most_bytes=20_000)
    asyncio.run(store.put(ADA, [os.urandom(9000)]))
    refused(ErrorCode.OVER_LIMIT, lambda: asyncio.run(store.put(ADA, [os.urandom(2000)])))
    asyncio.run(store.put(GRACE, [os.urandom(9000)]))


# -- making ----------------------------------------------------------------------------------------------------------


@root
def test_folder_is_created_with_rights_of_the_user(tmp_path: Path) -> None:
    """Root does not write where the user may not; the pool's own files stay closed to the user."""
    uid = 54321
    blobs = BlobFolder(tmp_path / "blobs")
    blobs.put(ADA, b"data")
    tree = FileTree(tree_from_bytes(manifest(files=[file("f", sha(b"data"), 4)])).files)
    place = Path("/tmp") / f"made-{os.getpid()}"
    place.mkdir(mode=0o700)

    def fill(rights: Any) -> None:
        make(tree, place, lambda digest: blobs.open(ADA, digest), rights)

    try:
        with pytest.raises(PermissionError):
            call_as(uid, fill)
        os.chown(place, uid, -1)
        call_as(uid, fill)
        assert (place / "f").stat().st_uid == uid
        assert os.geteuid() == 0
        (place / "g").touch()  # this thread has kept its own rights
    finally:
        shutil.rmtree(place)


@root
def test_rights_do_not_leak_into_other_threads() -> None:
    seen: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            with open("/proc/self/task/%d/status" % threading.get_native_id()) as status:  # noqa: PTH123, UP031
                seen.append(int(next(line for line in status if line.startswith("Uid:")).split()[4]))

    watcher = threading.Thread(target=watch)
    watcher.start()

    def work(rights: Any) -> int:
        with rights.user():
            time.sleep(0.05)
            return Path("/").stat().st_uid

    for _ in range(3):
        call_as(54321, work)
    stop.set()
    watcher.join()
    assert set(seen) == {0}
