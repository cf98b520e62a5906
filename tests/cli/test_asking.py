"""From option values to the body of a submission."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gpupool.cli import asking, leases, settings
from gpupool.cli.options import RUN, parse
from gpupool.domain.errors import GpupoolError
from gpupool.specs.request import parse_request


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GPUPOOL_PROJECT", raising=False)


def body(*argv: str) -> Any:
    values, command = parse(RUN, [*argv, "--", "prog", "a"])
    return asking.workload(values, command)


@pytest.mark.parametrize(
    ("argv", "gpus"),
    [
        ((), None),
        (("-n", "2"), {"count": 2}),
        (("-p", "0.1"), {"fraction": "0.1"}),
        (("-n", "1", "-m", "2048"), {"count": 1, "memory_mib": "2048"}),
        (("-g", "0.5"), {"count": 1, "fraction": 0.5}),
        (("-g", "2"), {"count": 2}),
        (("--model", "t4", "--model", "v100"), {"models": ["t4", "v100"]}),
        (("-p", "0.1", "--compute", "cap"), {"fraction": "0.1", "compute": "cap"}),
        (("--sharing", "mps"), {"sharing": "mps"}),
        (("--filter", "device.name=a100", "--filter", "rack=3"), {"models": ["a100"], "labels": {"rack": "3"}}),
    ],
)
def test_gpus(argv: tuple[str, ...], gpus: Any) -> None:
    assert body(*argv).get("gpus") == gpus


@pytest.mark.parametrize(
    "argv",
    [
        ("-n", "2", "-p", "25%", "--priority", "high", "--wait", "30m", "--max-time", "2h", "--cpus", "2"),
        ("-g", "1", "--no-wait", "--memory", "4G", "-l", "team=vision", "--grace", "1m", "--preemptible"),
        ("--priority", "-5", "--name", "x", "--project", "team-a", "--idle-timeout", "10m"),
    ],
)
def test_the_pool_takes_what_is_asked(argv: tuple[str, ...]) -> None:
    assert parse_request(body(*argv) | {"kind": "run"}).command == ["prog", "a"]


@pytest.mark.parametrize("argv", [("-g", "1", "-n", "2"), ("-p", "0.1", "-m", "5"), ("-l", "nonsense"), ("-e", "=x")])
def test_contradictions_are_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(GpupoolError):
        body(*argv)


def test_the_environment_has_no_secret_and_nothing_that_json_cannot_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPOOL_TOKEN", "gpt_a_b")
    monkeypatch.setenv("FINE", "ä")
    os.environb[b"BROKEN"] = b"\xff"
    try:
        env = asking.environment(["X=1", "FINE"])
    finally:
        del os.environb[b"BROKEN"]
    assert env["FINE"] == "ä"
    assert env["X"] == "1"
    assert not {"GPUPOOL_TOKEN", "BROKEN"} & env.keys()


def test_one_word_is_split_unless_a_program_has_that_name(tmp_path: Path) -> None:
    program = tmp_path / "my program"
    program.touch()
    assert asking.split_single(["python3 'a b'"]) == ["python3", "a b"]
    assert asking.split_single([str(program)]) == [str(program)]
    assert asking.split_single(["a b", "c"]) == ["a b", "c"]
    with pytest.raises(GpupoolError):
        asking.split_single(["echo 'unclosed"])


def test_a_folder_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(GpupoolError, match="is gone"):
        body()


def test_the_chosen_project_is_used_and_the_option_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    settings.save({"project": "team-a"})
    assert body()["project"] == "team-a"
    assert body("--project", "b")["project"] == "b"
    monkeypatch.setenv("GPUPOOL_PROJECT", "c")
    assert body()["project"] == "c"
    assert stat.S_IMODE(Path(settings.config_file()).stat().st_mode) == 0o600


def test_broken_choices_are_an_error_that_names_the_file() -> None:
    settings.write_private(settings.config_file(), "{")
    with pytest.raises(GpupoolError, match=r"config\.json"):
        settings.load()


LEASE = {"id": "w0000000001", "name": "lease-1"}


def test_a_lease_is_remembered_found_by_file_and_forgotten(tmp_path: Path) -> None:
    path = leases.remember(LEASE, str(tmp_path / "lease.json"))
    assert leases.lease_of(None) == LEASE["id"]
    assert leases.lease_of(path) == LEASE["id"]
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    leases.forget(LEASE["id"])
    assert not Path(path).exists()
    with pytest.raises(GpupoolError, match="no lease"):
        leases.lease_of(None)


def test_only_lease_files_are_ever_removed(tmp_path: Path) -> None:
    path = Path(leases.remember(LEASE, str(tmp_path / "lease.json")))
    path.write_text(json.dumps({"id": "w0000000002", "name": "another"}))
    leases.forget(LEASE["id"])
    assert path.exists()


def test_what_is_no_lease_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("[]")
    with pytest.raises(GpupoolError, match="not a lease file"):
        leases.lease_of(str(path))
