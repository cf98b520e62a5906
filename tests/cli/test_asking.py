"""From option values to the body of a submission."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gpupool.cli import leases, settings
from gpupool.cli.request import request_body
from gpupool.cli.request.options import RUN, parse
from gpupool.client.transport.http import Answer
from gpupool.domain.errors import GpupoolError
from gpupool.specs.request import parse_request


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GPUPOOL_PROJECT", raising=False)


def body(*argv: str) -> Any:
    values, command = parse(RUN, [*argv, "--", "prog", "a"])
    return request_body.workload_body(values, command)


@pytest.mark.parametrize(
    ("argv", "gpus"),
    [
        ((), None),
        (("-n", "2"), {"count": 2}),
        (("-p", "0.1"), {"fraction": "0.1"}),
        (("-n", "1", "-m", "2048"), {"count": 1, "memory_mib": "2048"}),
        (("-g", "0.5"), {"count": 1, "fraction": 0.5}),
        (("-g", "2"), {"count": 2}),
        (("--gpu-model", "t4", "--model", "v100"), {"models": ["t4", "v100"]}),
        (("-p", "0.1", "--compute", "cap"), {"fraction": "0.1", "compute": "cap"}),
        (("--sharing", "mps"), {"sharing": "mps"}),
        (("--filter", "device.name=a100", "--filter", "rack=3"), {"models": ["a100"], "labels": {"rack": "3"}}),
    ],
)
def test_gpu_amounts_are_parsed(argv: tuple[str, ...], gpus: Any) -> None:
    assert body(*argv).get("gpus") == gpus


@pytest.mark.parametrize(
    "argv",
    [
        ("-n", "2", "-p", "25%", "--priority", "high", "--wait", "30m", "--max-time", "2h", "--cpus", "2"),
        ("-g", "1", "--no-wait", "--memory", "4G", "-l", "team=vision", "--grace", "1m", "--preemptible"),
        ("--priority", "-5", "--name", "x", "--project", "team-a", "--idle-timeout", "10m"),
    ],
)
def test_pool_accepts_the_request(argv: tuple[str, ...]) -> None:
    assert parse_request(body(*argv) | {"kind": "run"}).command == ["prog", "a"]


@pytest.mark.parametrize("argv", [("-g", "1", "-n", "2"), ("-p", "0.1", "-m", "5"), ("-l", "nonsense"), ("-e", "=x")])
def test_contradictory_options_are_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(GpupoolError):
        body(*argv)


def test_environment_has_no_secrets_and_only_json_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPOOL_TOKEN", "gpt_a_b")
    monkeypatch.setenv("FINE", "ä")
    os.environb[b"BROKEN"] = b"\xff"
    try:
        env = request_body.environment(["X=1", "FINE"])
    finally:
        del os.environb[b"BROKEN"]
    assert env["FINE"] == "ä"
    assert env["X"] == "1"
    assert not {"GPUPOOL_TOKEN", "BROKEN"} & env.keys()


def test_single_word_is_split_unless_it_is_a_program(tmp_path: Path) -> None:
    program = tmp_path / "my program"
    program.touch()
    assert request_body.split_single(["python3 'a b'"]) == ["python3", "a b"]
    assert request_body.split_single([str(program)]) == [str(program)]
    assert request_body.split_single(["a b", "c"]) == ["a b", "c"]
    with pytest.raises(GpupoolError):
        request_body.split_single(["echo 'unclosed"])


def test_missing_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(GpupoolError, match="was deleted"):
        body()


def test_configured_project_is_used_unless_option_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    settings.save({"project": "team-a"})
    assert body()["project"] == "team-a"
    assert body("--project", "b")["project"] == "b"
    monkeypatch.setenv("GPUPOOL_PROJECT", "c")
    assert body()["project"] == "c"
    assert stat.S_IMODE(Path(settings.config_file()).stat().st_mode) == 0o600


def test_broken_configuration_error_names_the_file() -> None:
    settings.write_private(settings.config_file(), "{")
    with pytest.raises(GpupoolError, match=r"config\.json"):
        settings.load()


LEASE = {"id": "w0000000001", "name": "lease-1"}


class HeldLeases:
    """A transport to a pool in which the caller holds leases with these ids, newest first."""

    def __init__(self, *ids: str) -> None:
        self._rows = [{"id": lease, "name": f"name-of-{lease}", "kind": "lease"} for lease in ids]

    def call(self, method: str, target: str, body: object = None, timeout_s: float = 30.0) -> Answer:
        assert (method, target.partition("?")[0]) == ("GET", "/v1/workloads")
        return Answer(200, {"workloads": self._rows})


def meant(path: str | None, *held: str) -> str:
    return leases.find_lease(HeldLeases(*held), path)  # the one call that is made


def test_lease_file_is_written_found_and_removed(tmp_path: Path) -> None:
    path = leases.save_lease(LEASE, str(tmp_path / "lease.json"))
    assert meant(None, "w0000000002", LEASE["id"]) == LEASE["id"]
    assert meant(path) == LEASE["id"]
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    leases.delete_lease_files(LEASE["id"])
    assert not Path(path).exists()
    with pytest.raises(GpupoolError, match="no lease"):
        meant(None)


def test_newest_active_lease_is_used_if_remembered_one_has_ended(capfd: Any, tmp_path: Path) -> None:
    leases.save_lease(LEASE, str(tmp_path / "lease.json"))
    assert meant(None, "w0000000003", "w0000000002") == "w0000000003"
    assert "using name-of-w0000000003, the newest of your 2 leases" in capfd.readouterr().err


def test_only_lease_files_are_removed(tmp_path: Path) -> None:
    path = Path(leases.save_lease(LEASE, str(tmp_path / "lease.json")))
    path.write_text(json.dumps({"id": "w0000000002", "name": "another"}))
    leases.delete_lease_files(LEASE["id"])
    assert path.exists()


def test_invalid_lease_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("[]")
    with pytest.raises(GpupoolError, match="not a lease file"):
        meant(str(path))
