"""``gpupool jupyter``: the files that make kernels appear in Jupyter, and errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager

from gpupool.cli.app import run_app
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.jupyter import kernel_spec


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    return tmp_path


def add(*words: str) -> None:
    assert run_app(["jupyter", "kernel", "add", *words]) == 0


@pytest.mark.parametrize(
    ("words", "name", "title", "request_"),
    [
        (["0.02"], "gpupool-0.02", "Python (0.02 GPU)", {"gpus": {"fraction": 0.02}}),
        (["-m", "2G"], "gpupool-2048m", "Python (2048 MiB GPU)", {"gpus": {"memory_mib": 2048}}),
        (["-g", "1"], "gpupool-1", "Python (1 GPU)", {}),
        (["-n", "2", "--name", "Two", "--display-name", "Both"], "two", "Both", {"gpus": {"count": 2}}),
        (
            ["0.5", "--project", "vision", "--idle-timeout", "1h", "-e", "A=b"],
            "gpupool-0.5",
            "Python (0.5 GPU, vision)",
            {"project": "vision", "idle_timeout": 3600.0, "env": {"A": "b"}, "gpus": {"fraction": 0.5}},
        ),
    ],
)
def test_added_kernel_is_found_by_jupyter(words: list[str], name: str, title: str, request_: dict[str, object]) -> None:
    add(*words)
    spec = KernelSpecManager().get_kernel_spec(name)
    assert spec.display_name == title
    assert spec.argv[-2:] == ["-f", "{connection_file}"]
    provisioner = spec.metadata["kernel_provisioner"]
    assert provisioner == {"provisioner_name": "gpupool", "config": {"request": request_}}
    assert ("cull_idle_timeout" in spec.metadata) == ("idle_timeout" in request_), "one idle rule: that of the pool"


def test_list_and_remove_concern_own_kernels_only(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = folder / "kernels" / "other"
    other.mkdir(parents=True)
    (other / "kernel.json").write_text(json.dumps({"argv": ["x"], "display_name": "x", "language": "x"}))
    add("0.02")
    capfd.readouterr()
    assert run_app(["jupyter", "kernel", "list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capfd.readouterr().out)] == ["gpupool-0.02"]
    assert run_app(["jupyter", "kernel", "remove", "gpupool-0.02"]) == 0
    with pytest.raises(GpupoolError) as refused:
        run_app(["jupyter", "kernel", "remove", "other"])
    assert refused.value.code is ErrorCode.NOT_FOUND
    assert other.exists()


@pytest.mark.parametrize(
    ("words", "code", "next_step"),
    [
        (["0.02", "--language", "julia"], ErrorCode.UNSUPPORTED, "--language R"),
        ([], ErrorCode.INVALID_REQUEST, "add 0.02"),
        (["0.02", "-g", "1"], ErrorCode.INVALID_REQUEST, "Give one"),
        (["0.02", "--name", "../x"], ErrorCode.INVALID_NAME, "--name"),
        (["0.02", "--idle-timeout", "soon"], ErrorCode.INVALID_DURATION, "30s"),
        (["0.02", "--python", "/nowhere/python"], ErrorCode.INVALID_REQUEST, "path of a Python"),
    ],
)
def test_mistake_is_named_with_next_step(words: list[str], code: ErrorCode, next_step: str) -> None:
    with pytest.raises(GpupoolError) as refused:
        add(*words)
    assert refused.value.code is code
    assert next_step in refused.value.hint
    assert not kernel_spec.installed()


def test_taken_name_is_refused() -> None:
    add("0.02")
    with pytest.raises(GpupoolError) as refused:
        add("0.02")
    assert refused.value.code is ErrorCode.NAME_TAKEN


def test_python_without_ipykernel_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(GpupoolError, match="has no ipykernel") as refused:
        add("0.02", "--python", str(python))
    assert f"{python} -m pip install ipykernel" in refused.value.hint


def test_kernel_in_image_needs_no_local_python() -> None:
    add("0.1", "--image", "lab:1", "--name", "lab")
    assert KernelSpecManager().get_kernel_spec("lab").argv[:2] == ["env", "python3"]


def test_install_needs_a_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpupoolError, match="No Jupyter is installed") as refused:
        run_app(["jupyter", "install"])
    assert "--python" in refused.value.hint


def test_lazy_kernel_passes_its_options_on() -> None:
    add("0.02", "--lazy", "--on-preempt", "suspend")
    provisioner = KernelSpecManager().get_kernel_spec("gpupool-0.02").metadata["kernel_provisioner"]
    assert provisioner["config"] == {"request": {"gpus": {"fraction": 0.02}, "lazy": True, "on_preempt": "suspend"}}
