"""``workspace export`` and ``import``: a workspace moves as a file, completely or not at all."""

from __future__ import annotations

import gzip
import io
import os
import signal
import tarfile
from pathlib import Path

import pytest
from e2e_pool import RealPool, eventually, walk

from gpupool.domain.errors import GpupoolError
from gpupool.domain.work.workspace import IMPORT_GRACE_S

WRITE = "mkdir d; echo hello > d/data; ln -s d/data link; head -c 3000000 /dev/urandom > big; cksum big"


def names(pool: RealPool) -> list[str]:
    return [row["name"] for row in pool.json("workspace", "list")["workspaces"]]


def contents(archive: bytes) -> list[tuple[object, ...]]:
    """Return what an archive has of each file, except its description."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        found = [m for m in files if m.name != "workspace.json"]
    return [(m.name, m.type, m.mode, 0 if m.issym() else m.mtime, m.size, m.linkname) for m in found]


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_workspace_moves_as_a_file(pool: RealPool, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"bob{suffix}"
    pool("workspace", "create", "bob", "-p", "0.25")
    pool("workspace", "start", "bob", "-n", "0")
    written = pool.text("exec", "bob", "--", "sh", "-c", WRITE)
    refused = pool("workspace", "export", "bob", str(file), ok=False)
    assert b"it must be stopped for 'export'" in refused.stderr
    pool("workspace", "stop", "bob")
    pool("workspace", "assign", "bob", "-p", "0.25")
    pool("workspace", "export", "bob", str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert b"exists" in pool("workspace", "export", "bob", str(file), ok=False).stderr
    pool("workspace", "export", "bob", str(file), "--force")
    pool("workspace", "delete", "bob", "--yes")

    pool("workspace", "import", "moved", str(file))
    [row] = pool.json("workspace", "list")["workspaces"]
    assert (row["name"], row["state"], row["gpus"]["permille"]) == ("moved", "stopped", 250)
    pool("workspace", "start", "moved", "-n", "0")
    assert pool.text("exec", "moved", "--", "sh", "-c", "cat link; cksum big") == f"hello\n{written}"
    assert b"NAME_TAKEN" in pool("workspace", "import", "moved", str(file), ok=False).stderr
    pool("workspace", "stop", "moved")
    pool("workspace", "delete", "moved", "--yes")


def test_archive_goes_through_pipes(pool: RealPool) -> None:
    pool("workspace", "create", "bob", "-n", "0")
    pool("workspace", "start", "bob")
    pool("exec", "bob", "--", "sh", "-c", WRITE)
    pool("workspace", "stop", "bob")
    archive = pool("workspace", "export", "bob", "-").stdout
    pool("workspace", "import", "copy", "-", stdin=archive)
    again = pool("workspace", "export", "copy", "-").stdout
    assert contents(again) == contents(archive)
    for name in ("bob", "copy"):
        pool("workspace", "delete", name, "--yes")


def test_broken_archive_leaves_no_workspace(pool: RealPool, tmp_path: Path) -> None:
    pool("workspace", "create", "bob", "-n", "0")
    whole = pool("workspace", "export", "bob", "-").stdout
    (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(whole)[:-50])
    (tmp_path / "junk.tar").write_bytes(b"junk" * 1000)
    (tmp_path / "short.tar").write_bytes(whole[:1024])
    for file in sorted(tmp_path.iterdir()):
        failed = pool("workspace", "import", "broken", str(file), ok=False)
        assert failed.returncode != 0, file
        assert b"INVALID_FILE" in failed.stderr
        assert names(pool) == ["bob"]
    assert b"NAME.tar" in pool("workspace", "export", "bob", str(tmp_path / "bob.zip"), ok=False).stderr
    pool("workspace", "delete", "bob", "--yes")


def test_killed_import_leaves_no_workspace(pool: RealPool) -> None:
    pool("workspace", "create", "bob", "-n", "0")
    pool("workspace", "start", "bob")
    pool("exec", "bob", "--", "sh", "-c", WRITE)
    pool("workspace", "stop", "bob")
    archive = pool("workspace", "export", "bob", "-").stdout
    importing = pool.begin("workspace", "import", "half", "-")
    assert importing.stdin is not None
    importing.stdin.write(archive[:-1_000_000])
    importing.stdin.flush()
    assert eventually(lambda: [path for path in walk(pool.state / "workspaces") if ".gpupool-import" in path.parts])
    os.kill(importing.pid, signal.SIGKILL)
    importing.communicate()
    with pool.client as client:
        half = client.workspace("half")
        assert half.state == "importing"
        assert eventually(lambda: client.workspace("half").session is None)
        refused = pool("workspace", "start", "half", ok=False)
        assert b"is importing; it must be stopped for 'start'" in refused.stderr
        assert b"workspace delete half" in refused.stderr
        assert eventually(lambda: names(pool) == ["bob"], IMPORT_GRACE_S + 60)
        assert eventually(
            lambda: [path.name for path in walk(pool.state / "workspaces") if half.id in path.parts] == []
        )
    pool("workspace", "delete", "bob", "--yes")


def test_client_moves_a_workspace(pool: RealPool, tmp_path: Path) -> None:
    file = tmp_path / "bob.tar"
    with pool.client as client:
        client.create_workspace("bob", 0)
        session = client.start_workspace("bob").session
        assert session is not None
        with pytest.raises(GpupoolError, match="must be stopped for 'export'"):
            client.export_workspace("bob", file)
        assert pool.becomes(session, "running")
        pool("exec", "bob", "--", "sh", "-c", WRITE)
        client.stop_workspace("bob")
        client.wait(session)
        assert client.export_workspace("bob", file) == file.stat().st_size
        assert contents(pool("workspace", "export", "bob", "-").stdout) == contents(file.read_bytes())
        copy = client.import_workspace("copy", file)
        assert (copy.state, copy.gpus.count) == ("stopped", 0)
        client.export_workspace("copy", tmp_path / "again.tar.gz")
        assert contents(gzip.decompress((tmp_path / "again.tar.gz").read_bytes())) == contents(file.read_bytes())

        whole = file.read_bytes()
        (tmp_path / "cut.tar").write_bytes(whole[:-2_000_000])
        with pytest.raises(GpupoolError, match="The import failed"):
            client.import_workspace("broken", tmp_path / "cut.tar")
        evil = tmp_path / "evil.tar"
        with tarfile.open(evil, "w") as hostile, tarfile.open(file) as files:
            hostile.addfile(files.next(), files.extractfile("workspace.json"))  # type: ignore[arg-type]
            hostile.addfile(tarfile.TarInfo("home/../../../escaped"))
            for number in range(300):  # more than the pipes hold: the program ends before it has read them
                block = tarfile.TarInfo(f"home/{number}")
                block.size = 100_000
                hostile.addfile(block, io.BytesIO(bytes(block.size)))
        with pytest.raises(GpupoolError, match=r"The import failed.*escaped"):
            client.import_workspace("broken", evil)
        assert sorted(each.name for each in client.workspaces()) == ["bob", "copy"]
        for name in ("bob", "copy"):
            client.delete_workspace(name)
