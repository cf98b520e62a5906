"""Which pool a command belongs to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpupool.client import locate
from gpupool.client.locate import Location, Remote, find_pool, listen_unix, place_for_new_pool
from gpupool.domain.errors import ErrorCode, GpupoolError

VARIABLES = ("GPUPOOL_URL", "GPUPOOL_TOKEN", "GPUPOOL_CA", "GPUPOOL_STATE_DIR", "GPUPOOL_RUN_DIR", "XDG_STATE_HOME")


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary user with an empty home on a machine without a system pool."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(locate, "SYSTEM_RUN_DIR", str(tmp_path / "system-run"))
    monkeypatch.setattr(locate, "SYSTEM_STATE_DIR", str(tmp_path / "system-state"))


def start_at(location: Location, file: str = "api.sock") -> None:
    Path(location.run_dir).mkdir(parents=True, exist_ok=True)
    Path(location.run_dir, file).touch()


def test_without_any_pool_there_is_none_and_a_place_in_the_home(tmp_path: Path) -> None:
    assert find_pool() is None
    place = place_for_new_pool()
    assert place.state_dir == str(tmp_path / "home/.local/state/gpupool")
    assert place.run_dir == f"{place.state_dir}/run"
    assert place.api_socket == f"{place.state_dir}/run/api.sock"
    assert place.kind == locate.USER


def test_sockets_do_not_live_in_a_folder_that_logging_out_empties(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert place_for_new_pool().run_dir.startswith(place_for_new_pool().state_dir)


def test_the_users_own_pool_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    start_at(Location(str(tmp_path / "xdg/gpupool"), str(tmp_path / "xdg/gpupool/run"), locate.USER))
    assert find_pool() == place_for_new_pool()


@pytest.mark.parametrize("file", ["api.sock", "state.json"])
def test_the_machines_pool_comes_before_the_users_own_even_while_its_socket_is_away(file: str) -> None:
    start_at(place_for_new_pool())
    start_at(Location(locate.SYSTEM_STATE_DIR, locate.SYSTEM_RUN_DIR, locate.SYSTEM), file)
    found = find_pool()
    assert isinstance(found, Location)
    assert (found.kind, found.run_dir) == (locate.SYSTEM, locate.SYSTEM_RUN_DIR)


def test_a_named_folder_comes_before_the_machines_pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start_at(Location(locate.SYSTEM_STATE_DIR, locate.SYSTEM_RUN_DIR, locate.SYSTEM))
    monkeypatch.setenv("GPUPOOL_STATE_DIR", str(tmp_path / "mine"))
    assert find_pool() is None
    start_at(place_for_new_pool())
    found = find_pool()
    assert isinstance(found, Location)
    assert found.state_dir == str(tmp_path / "mine")


def test_root_has_the_machines_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    place = place_for_new_pool()
    assert (place.state_dir, place.run_dir) == (locate.SYSTEM_STATE_DIR, locate.SYSTEM_RUN_DIR)
    assert place.kind == locate.SYSTEM


def test_a_url_comes_before_everything_and_its_token_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPOOL_URL", "https://gpu1:8443/")
    monkeypatch.setenv("GPUPOOL_TOKEN", "gpt_ab_secret")
    monkeypatch.setenv("GPUPOOL_CA", "/ca.pem")
    found = find_pool()
    assert isinstance(found, Remote)
    assert (found.url, found.token, found.ca_file) == ("https://gpu1:8443", "gpt_ab_secret", "/ca.pem")
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("url", "token", "code"),
    [
        ("http://gpu1:8443", "gpt_ab_c", ErrorCode.INVALID_REQUEST),
        ("https://gpu1:8443", "", ErrorCode.UNAUTHENTICATED),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, url: str, token: str, code: ErrorCode
) -> None:
    monkeypatch.setenv("GPUPOOL_URL", url)
    monkeypatch.setenv("GPUPOOL_TOKEN", token)
    with pytest.raises(GpupoolError) as caught:
        find_pool()
    assert caught.value.code is code


@pytest.mark.parametrize("depth", [1, 20])
def test_sockets_work_at_any_depth_and_replace_what_was_there(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["a-long-folder-name"] * depth)
    folder.mkdir(parents=True)
    path = folder / "api.sock"
    path.touch()
    with listen_unix(str(path), mode=0o640) as server, socket.socket(socket.AF_UNIX) as client:
        locate.connect_unix(client, str(path))
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"hello")
            assert accepted.recv(5) == b"hello"
        assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in folder.iterdir()] == ["api.sock"]


def test_finding_a_pool_imports_next_to_nothing() -> None:
    code = "import sys; import gpupool.client.locate as l; l.find_pool(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"dataclasses", "json", "pathlib", "socket", "subprocess", "asyncio", "pydantic", "httpx2"}
