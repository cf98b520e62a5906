"""``python -m gpupool.verify`` on the simulated driver: healthy GPUs, every injected fault, and children that fail."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from native_harness import FakeGpu, clean_environment, fake_gpus_folder

from gpupool.verify.children import ChildError, ask_child
from gpupool.verify.results import CheckOptions
from gpupool.verify.schema import verify_schema
from requires import cc

GPUS = tuple(FakeGpu(uuid=f"GPU-00000000-0000-0000-0000-00000000000{index}") for index in (1, 2, 3))
FAULTY = 1


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with three simulated GPUs of one model."""

    driver: Path
    gpus: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a program that uses the simulated driver."""
        own = {"LD_LIBRARY_PATH": str(self.driver), "GPUPOOL_FAKE_GPUS": str(self.gpus)}
        return clean_environment() | own | more

    def break_gpu(self, fault: str) -> None:
        """Give one GPU this fault."""
        (self.gpus / "faults.conf").write_text(f"# for a test\n{FAULTY} {fault}\n")

    def verify(self, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the checks."""
        command = [sys.executable, "-m", "gpupool.verify", "--node", "n1", *options]
        return subprocess.run(command, env=self.environment(**more), capture_output=True, text=True, check=False)

    def report(self, *options: str, **more: str) -> tuple[int, dict[str, Any]]:
        """Return the exit status and the report, which agrees with the schema."""
        done = self.verify("--json", *options, **more)
        report = json.loads(done.stdout)
        jsonschema.validate(report, verify_schema(), cls=jsonschema.Draft202012Validator)
        return done.returncode, report


@pytest.fixture
def machine(native_out: Path, tmp_path: Path) -> Machine:
    return Machine(native_out / "fake", fake_gpus_folder(tmp_path / "gpus", GPUS))


def findings(report: dict[str, Any]) -> dict[tuple[int, str], str]:
    """Return the notes of the checks of GPUs that are suspect or failed, by index and name."""
    return {
        (gpu["index"], check["name"]): check["note"]
        for gpu in report["gpus"]
        for check in gpu["checks"]
        if check["outcome"] in {"suspect", "fail"}
    }


def test_healthy_gpus_pass_every_check(machine: Machine) -> None:
    status, report = machine.report()
    assert findings(report) == {}
    assert status == 0
    assert (report["node"], report["level"], report["emulated"]) == ("n1", 1, True)
    assert [gpu["uuid"] for gpu in report["gpus"]] == [gpu.uuid for gpu in GPUS]
    names = [check["name"] for check in report["gpus"][0]["checks"]]
    assert names == [
        "present", "context", "vector-add", "saxpy", "matmul", "memory", "copies", "link", "ecc", "throttling",
        "persistence", "peers", "xid",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "check", "note"),
    [
        ("flip", "memory", "1 word of memory changed: first at offset 0x800000, bits 0x00000020"),
        ("slow-link 8", "link", "the PCIe link has 2 of 16 lanes"),
        ("slow-link 8", "copies", "% of the median of this model"),
        ("no-peer", "peers", "no peer access to any other GPU"),
        ("xid 79", "xid", "the GPU reported XID 79"),
        ("vanished", "present", "the GPU has disappeared"),
        ("throttle", "throttling", "hardware thermal slowdown"),
    ],
)
def test_fault_is_found_on_its_gpu_only(machine: Machine, fault: str, check: str, note: str) -> None:
    machine.break_gpu(fault)
    status, report = machine.report()
    found = findings(report)
    assert status == 2
    assert note in found[FAULTY, check]
    assert {index for index, _ in found} == {FAULTY}
    assert [gpu["outcome"] for gpu in report["gpus"]] == ["ok", "fail", "ok"]


@pytest.mark.parametrize(
    ("mode", "outcome", "note"),
    [
        ("", "ok", "version 130100"),
        ("wrong", "fail", "wrong product of matrices of 64 rows"),
        ("broken", "fail", "cublasSgemm_v2 failed with status 14"),
    ],
)
def test_product_of_cublas_is_compared(machine: Machine, tmp_path: Path, mode: str, outcome: str, note: str) -> None:
    source = Path(__file__).parent / "programs/cublas_standin.c"
    driver = machine.driver / "libcuda.so.1"
    cc("-std=gnu11", "-O2", "-shared", "-fPIC", "-o", tmp_path / "libcublas.so.13", source, driver)
    path = f"{machine.driver}:{tmp_path}"
    _, report = machine.report("--level", "2", "--gpu", "0", LD_LIBRARY_PATH=path, CUBLAS_STANDIN=mode)
    check = checks_of(report, 0)["cublas"]
    assert (check["outcome"], check["note"]) == (outcome, note)
    assert ("gemm_tflop_s" in check["values"]) == (mode != "broken")


def test_check_of_cublas_is_skipped_without_it(machine: Machine) -> None:
    _, report = machine.report("--level", "2", "--gpu", "0")
    check = checks_of(report, 0)["cublas"]
    assert (check["outcome"], check["note"]) == ("skipped", "neither the loader nor a package of Python has libcublas")


@pytest.mark.parametrize(
    ("mode", "outcome", "note"),
    [
        ("", "ok", "version 2.32.3"),
        ("wrong", "fail", f"wrong sums on {GPUS[1].uuid_bytes.hex()}"),
        ("broken", "fail", "ncclAllReduce failed: internal error: the link is down"),
        ("no-start", "suspect", "NCCL 2.32.3 does not start: ncclCommInitAll failed: internal error: the link is down"),
        ("idle", "skipped", "an emulated GPU does not compute the kernels of NCCL; version 2.32.3 started"),
    ],
)
def test_sums_of_nccl_are_compared(machine: Machine, nccl: Path, mode: str, outcome: str, note: str) -> None:
    """Use a stand-in for NCCL that adds up on the CPU, because emulated GPUs do not compute NCCL's kernels."""
    path = f"{machine.driver}:{nccl}"
    status, report = machine.report("--level", "2", LD_LIBRARY_PATH=path, NCCL_STANDIN=mode)
    check = {check["name"]: check for check in report["checks"]}["nccl"]
    assert (check["outcome"], check["note"]) == (outcome, note)
    assert status == {"ok": 0, "skipped": 0, "suspect": 1, "fail": 2}[outcome]
    assert {gpu["outcome"] for gpu in report["gpus"]} == {"ok"}
    assert ("bus_gib_s" in check["values"]) == (mode == "")
    if mode == "":
        assert check["values"]["ranks"] == 3


def test_check_of_nccl_with_one_gpu_has_no_bus_bandwidth(machine: Machine, nccl: Path) -> None:
    _, report = machine.report("--level", "2", "--gpu", "1", LD_LIBRARY_PATH=f"{machine.driver}:{nccl}")
    check = {check["name"]: check for check in report["checks"]}["nccl"]
    assert (check["outcome"], check["note"]) == ("ok", "version 2.32.3; one GPU sends nothing")
    assert set(check["values"]) == {"ranks", "size_mib", "round_ms"}


def test_check_of_nccl_is_skipped_without_it(machine: Machine) -> None:
    _, report = machine.report("--level", "2", "--gpu", "0")
    check = {check["name"]: check for check in report["checks"]}["nccl"]
    assert (check["outcome"], check["note"]) == ("skipped", "neither the loader nor a package of Python has libnccl")


@pytest.fixture
def nccl(machine: Machine, tmp_path: Path) -> Path:
    """Return a folder with the stand-in for NCCL."""
    folder = tmp_path / "nccl"
    folder.mkdir()
    source = Path(__file__).parent / "programs/nccl_standin.c"
    cc("-std=gnu11", "-O2", "-shared", "-fPIC", "-o", folder / "libnccl.so.2", source, machine.driver / "libcuda.so.1")
    return folder


def checks_of(report: dict[str, Any], index: int) -> dict[str, dict[str, Any]]:
    """Return the checks of a GPU by name."""
    return {check["name"]: check for check in report["gpus"][index]["checks"]}


def test_level_2_checks_more_memory_and_copies_between_gpus(machine: Machine) -> None:
    status, report = machine.report("--level", "2")
    assert (status, report["level"]) == (0, 2)
    checks = checks_of(report, 0)
    assert checks["memory"]["values"]["tested_mib"] == 64
    assert checks["peer-copies"]["values"]["least_peer_gib_s"] > 0
    assert "burn" not in checks


def test_level_3_repeats_work_and_compares_it(machine: Machine) -> None:
    status, report = machine.report("--level", "3", "--burn", "0", "--gpu", "0")
    assert (status, report["level"]) == (0, 3)
    checks = checks_of(report, 0)
    assert checks["burn"]["values"]["rounds"] >= 2
    assert checks["burn"]["values"]["max_temperature_c"] == 40
    assert checks["peer-copies"]["outcome"] == "skipped"


def test_level_2_finds_a_flip(machine: Machine) -> None:
    machine.break_gpu("flip")
    status, report = machine.report("--level", "2")
    assert status == 2
    assert "block 0 of 4" in findings(report)[FAULTY, "memory"]


def test_xid_that_programs_cause_is_no_fault(machine: Machine) -> None:
    machine.break_gpu("xid 31")
    assert machine.report()[0] == 0


def test_xid_that_degrades_a_gpu_makes_it_suspect(machine: Machine) -> None:
    machine.break_gpu("xid 94")
    status, report = machine.report()
    assert status == 1
    assert list(findings(report)) == [(FAULTY, "xid")]


def test_gpu_that_vanished_is_named_by_its_uuid_in_a_workload(machine: Machine) -> None:
    machine.break_gpu("vanished")
    status, report = machine.report(CUDA_VISIBLE_DEVICES=",".join(gpu.uuid for gpu in GPUS))
    assert status == 2
    assert [(gpu["uuid"], gpu["outcome"]) for gpu in report["gpus"]] == [
        (GPUS[0].uuid, "ok"),
        (GPUS[1].uuid, "fail"),
        (GPUS[2].uuid, "ok"),
    ]


def test_only_the_chosen_gpu_is_checked(machine: Machine) -> None:
    machine.break_gpu("flip")
    status, report = machine.report("--gpu", "2")
    assert status == 0
    assert [gpu["index"] for gpu in report["gpus"]] == [2]


def test_table_says_that_results_are_emulated(machine: Machine) -> None:
    done = machine.verify()
    assert done.returncode == 0
    assert "The GPUs are emulated" in done.stdout
    assert "GPU 2 of n1 (Fake T4 (emulated)): ok" in done.stdout


@pytest.mark.parametrize("options", [["--gpu", "7"], []])
def test_nothing_to_check_is_an_error(machine: Machine, options: list[str]) -> None:
    if not options:
        (machine.gpus / "gpus.conf").unlink()
    done = machine.verify(*options)
    assert done.returncode == 3
    assert done.stderr.startswith("gpupool verify: ")


def test_child_that_hangs_is_killed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    started = time.monotonic()
    with pytest.raises(ChildError, match="the GPU hangs"):
        ask_child("memory", [GPUS[0].uuid], CheckOptions(emulated=True), timeout_s=0)
    assert time.monotonic() - started < 60


def test_child_that_uses_too_much_memory_is_killed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ChildError, match="more than 1 MiB"):
        ask_child("memory", [GPUS[0].uuid], CheckOptions(emulated=True), max_memory_mib=1)


def test_child_that_crashes_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = "#include <stdlib.h>\nint cuGetErrorName(void) { return 0; }\nint cuInit(void) { abort(); }\n"
    (tmp_path / "driver.c").write_text(source)
    library = tmp_path / "libcuda.so.1"
    cc("-shared", "-fPIC", "-o", library, tmp_path / "driver.c")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(ChildError, match="SIGABRT"):
        ask_child("memory", [GPUS[0].uuid], CheckOptions(emulated=True))
