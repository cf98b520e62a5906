"""The choice of the pool that a command uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpupool.client import discovery
from gpupool.client.discovery import Location, Remote, find_pool, place_for_new_pool
from gpupool.domain.errors import ErrorCode, GpupoolError

VARIABLES = ("GPUPOOL_URL", "GPUPOOL_TOKEN", "GPUPOOL_CA", "GPUPOOL_STATE_DIR", "GPUPOOL_RUN_DIR", "XDG_STATE_HOME")


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate an ordinary user with an empty home on a machine without a system pool."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(discovery, "SYSTEM_RUN_DIR", str(tmp_path / "system-run"))
    monkeypatch.setattr(discovery, "SYSTEM_STATE_DIR", str(tmp_path / "system-state"))


def start_at(location: Location, file: str = "api.sock") -> None:
    Path(location.run_dir).mkdir(parents=True, exist_ok=True)
    Path(location.run_dir, file).touch()


def test_no_pool_is_found_and_default_folder_is_in_home(tmp_path: Path) -> None:
    assert find_pool() is None
    place = place_for_new_pool()
    assert place.state_dir == str(tmp_path / "home/.local/state/gpupool")
    assert place.run_dir == f"{place.state_dir}/run"
    assert place.api_socket == f"{place.state_dir}/run/api.sock"
    assert place.kind == discovery.USER


def test_sockets_are_not_in_a_folder_that_logout_empties(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert place_for_new_pool().run_dir.startswith(place_for_new_pool().state_dir)


def test_own_pool_of_user_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    start_at(Location(str(tmp_path / "xdg/gpupool"), str(tmp_path / "xdg/gpupool/run"), discovery.USER))
    assert find_pool() == place_for_new_pool()


@pytest.mark.parametrize("file", ["api.sock", "state.json"])
def test_system_pool_precedes_own_pool_even_without_socket(file: str) -> None:
    start_at(place_for_new_pool())
    start_at(Location(discovery.SYSTEM_STATE_DIR, discovery.SYSTEM_RUN_DIR, discovery.SYSTEM), file)
    found = find_pool()
    assert isinstance(found, Location)
    assert (found.kind, found.run_dir) == (discovery.SYSTEM, discovery.SYSTEM_RUN_DIR)


def test_named_folder_precedes_system_pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start_at(Location(discovery.SYSTEM_STATE_DIR, discovery.SYSTEM_RUN_DIR, discovery.SYSTEM))
    monkeypatch.setenv("GPUPOOL_STATE_DIR", str(tmp_path / "mine"))
    assert find_pool() is None
    start_at(place_for_new_pool())
    found = find_pool()
    assert isinstance(found, Location)
    assert found.state_dir == str(tmp_path / "mine")


def test_root_uses_system_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    place = place_for_new_pool()
    assert (place.state_dir, place.run_dir) == (discovery.SYSTEM_STATE_DIR, discovery.SYSTEM_RUN_DIR)
    assert place.kind == discovery.SYSTEM


def test_url_precedes_all_pools_and_its_token_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_invalid_url_is_refused(monkeypatch: pytest.MonkeyPatch, url: str, token: str, code: ErrorCode) -> None:
    monkeypatch.setenv("GPUPOOL_URL", url)
    monkeypatch.setenv("GPUPOOL_TOKEN", token)
    with pytest.raises(GpupoolError) as caught:
        find_pool()
    assert caught.value.code is code


def test_pool_lookup_imports_few_modules() -> None:
    code = "import sys; import gpupool.client.discovery as l; l.find_pool(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"dataclasses", "json", "pathlib", "socket", "subprocess", "asyncio", "pydantic", "httpx2"}
