"""Unix sockets with long paths, and when they appear."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gpupool import unix_sockets
from gpupool.unix_sockets import PATH_LIMIT, ShortPath


@pytest.mark.parametrize("depth", [1, 20])
def test_sockets_work_in_deep_folders_and_replace_old_ones(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["a-long-folder-name"] * depth)
    folder.mkdir(parents=True)
    path = folder / "api.sock"
    path.touch()
    with unix_sockets.listen(path, mode=0o640) as server, socket.socket(socket.AF_UNIX) as client:
        unix_sockets.connect(client, path)
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"hello")
            assert accepted.recv(5) == b"hello"
        assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in folder.iterdir()] == ["api.sock"]


def test_socket_accepts_connections_from_the_moment_it_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent.sock"
    before: list[tuple[bool, int]] = []
    rename = os.rename

    def look(old: str, new: str) -> None:
        with socket.socket(socket.AF_UNIX) as early:
            early.connect(old)
        before.append((path.exists(), Path(old).stat().st_mode & 0o777))
        rename(old, new)

    monkeypatch.setattr(os, "rename", look)
    unix_sockets.listen(path).close()
    assert before == [(False, 0o600)]


def test_failed_listener_leaves_the_old_socket_alone(tmp_path: Path) -> None:
    with unix_sockets.listen(tmp_path / "api.sock") as server, socket.socket(socket.AF_UNIX) as client:
        (tmp_path / f"api.sock.{os.getpid()}").mkdir()
        with pytest.raises(OSError, match="directory"):
            unix_sockets.listen(tmp_path / "api.sock")
        unix_sockets.connect(client, tmp_path / "api.sock")
        server.accept()[0].close()


def test_folder_descriptor_of_a_long_path_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * PATH_LIMIT)
    folder.mkdir()
    before = set(Path("/proc/self/fd").iterdir())
    with ShortPath(folder / "x") as name:
        assert name.startswith("/proc/self/fd/")
        Path(name).touch()
    assert (folder / "x").exists()
    assert set(Path("/proc/self/fd").iterdir()) == before
