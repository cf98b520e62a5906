"""Outcomes, comparison with peers, the published schema, and kernels that ptxas accepts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from gpupool.verify.kernels import NAMES, PTX
from gpupool.verify.node_checks import check_node
from gpupool.verify.results import Check, CheckOutcome, Subject, VerifyReport, compare_with_peers, worst
from gpupool.verify.schema import network_schema, schema_text, verify_schema
from requires import ptxas

ROOT = Path(__file__).parents[2]
OK, SKIPPED, SUSPECT, FAIL = CheckOutcome.OK, CheckOutcome.SKIPPED, CheckOutcome.SUSPECT, CheckOutcome.FAIL


def gpu(index: int, rate: float, model: str = "T4") -> Subject:
    return Subject(index, f"GPU-{index}", model, (Check("copies", values={"host_to_device_gib_s": rate}),))


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([], SKIPPED),
        ([SKIPPED], SKIPPED),
        ([SKIPPED, OK], OK),
        ([OK, SUSPECT, SKIPPED], SUSPECT),
        ([SUSPECT, FAIL, OK], FAIL),
    ],
)
def test_worst_outcome(outcomes: list[CheckOutcome], expected: CheckOutcome) -> None:
    assert worst(outcomes) is expected


@pytest.mark.parametrize(("outcome", "status"), [(OK, 0), (SKIPPED, 0), (SUSPECT, 1), (FAIL, 2)])
def test_exit_status_follows_the_worst_outcome(outcome: CheckOutcome, status: int) -> None:
    subject = Subject(0, "GPU-0", "T4", (Check("memory", outcome, "why"),))
    assert (
        VerifyReport("n1", 1, emulated=False, driver_version="580.0", checks=(), gpus=(subject,)).exit_status == status
    )


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([10, 10, 8.9], [OK, OK, SUSPECT]),
        ([10, 10, 9.1], [OK, OK, OK]),
        ([10, 1], [OK, OK]),  # the median of two says nothing
        ([10, 12, 14, 1], [OK, OK, OK, SUSPECT]),
    ],
)
def test_rate_below_nine_tenths_of_the_median_is_suspect(rates: list[float], expected: list[CheckOutcome]) -> None:
    found = compare_with_peers(tuple(gpu(index, rate) for index, rate in enumerate(rates)))
    assert [subject.outcome for subject in found] == expected


def test_one_gpu_is_compared_with_earlier_results_of_others() -> None:
    earlier = [gpu(1, 10), gpu(2, 10), gpu(0, 10)]  # the last is an earlier result of the same GPU
    assert [subject.outcome for subject in compare_with_peers((gpu(0, 5),), earlier)] == [SUSPECT]
    assert [subject.outcome for subject in compare_with_peers((gpu(0, 5),), earlier[:1])] == [OK]


def test_only_equal_models_are_compared() -> None:
    found = compare_with_peers((gpu(0, 50, "H100"), gpu(1, 50, "H100"), gpu(2, 50, "H100"), gpu(3, 5, "T4")))
    assert {subject.outcome for subject in found} == {OK}


def test_check_survives_its_json_form() -> None:
    check = Check("copies", SUSPECT, "slow", {"host_to_device_gib_s": 1.5})
    assert Check.from_dict(check.to_dict()) == check


def test_schema_is_valid_and_published() -> None:
    jsonschema.Draft202012Validator.check_schema(verify_schema())
    jsonschema.Draft202012Validator.check_schema(network_schema())
    assert (ROOT / "docs" / "verify.schema.json").read_text() == schema_text(verify_schema())
    assert (ROOT / "docs" / "verify-network.schema.json").read_text() == schema_text(network_schema())


@pytest.mark.parametrize("outcome", [SKIPPED, SUSPECT, FAIL])
def test_schema_requires_a_reason(outcome: CheckOutcome) -> None:
    report = VerifyReport(
        "n1", 1, emulated=False, driver_version="580.0", checks=(Check("uvm", outcome, "why"),), gpus=()
    ).to_dict()
    validator = jsonschema.Draft202012Validator(verify_schema())
    assert validator.is_valid(report)
    report["checks"][0]["note"] = ""
    assert not validator.is_valid(report)


def test_driver_of_another_version_fails(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:12:55 UTC 2025\n"
    (tmp_path / "proc/driver/nvidia/version").write_text(version)
    (tmp_path / "dev/shm").mkdir(parents=True)
    found = {check.name: check for check in check_node("575.1", emulated=False, root=tmp_path)}
    assert found["driver"].note == "the kernel module has version 580.65.06, the libraries 575.1: restart the node"
    assert found["uvm"].outcome is FAIL
    (tmp_path / "dev/nvidia-uvm").touch()
    found = {check.name: check for check in check_node("580.65.06", emulated=False, root=tmp_path)}
    assert (found["driver"].outcome, found["uvm"].outcome) == (OK, OK)


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize("capability", [75, 80, 86, 89, 90, 100, 120])
def test_kernels_assemble(tmp_path: Path, capability: int) -> None:
    assembler = ptxas()
    assert assembler is not None
    (tmp_path / "verify.ptx").write_text(PTX)
    command = [assembler, f"-arch=sm_{capability}", "-v", "verify.ptx", "-o", "verify.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(f"'{name}'" in done.stdout + done.stderr for name in NAMES)


def test_program_imports_only_the_standard_library() -> None:
    script = (
        "import sys; before = set(sys.modules)\n"
        "import gpupool.verify.__main__, gpupool.verify.child\n"
        "print(*sorted({n.partition('.')[0] for n in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n{script}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["gpupool"], done.stderr
