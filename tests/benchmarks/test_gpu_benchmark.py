"""The benchmark for real GPUs, as far as a machine without one can tell: its table, its sums, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import bench
import pytest
import run
from bench import NATIVE, Bench, FailedError, NoGpuError, SkipError, Work, answer_of, part
from figures import Report, markdown, write
from parts import PARTS, frameworks, kills, memory, models, shares

from gpupool.bench.figures import Figure, NotMeasuredError, Outcome, failed, measured, skipped, value_text

SCRIPT = Path(run.__file__)
FACTS = {"date": "2031-02-03T04:05:06+00:00", "gpu": "Tesla T4", "driver": "999.1", "versions": {"torch": "9"}}
GOOD = measured("Part", "a | b", 1.25, "points", samples=3, goal="at most 2", runs=[1])
NOT_HERE = skipped("Part", "c", "torch is not installed")


# --- figures


@pytest.mark.parametrize(("value", "samples"), [(float("nan"), 3), (float("inf"), 3), (1.0, 0)])
def test_unmeasured_value_is_no_result(value: float, samples: int) -> None:
    with pytest.raises(NotMeasuredError):
        measured("Part", "x", value, "ms", samples=samples)


@pytest.mark.parametrize("figure", [NOT_HERE, failed("Part", "d", "status 1")])
def test_result_without_number_is_empty(figure: Figure) -> None:
    with pytest.raises(NotMeasuredError):
        value_text(figure)
    page = markdown(Report(FACTS, (figure,), emulated=False)).splitlines()
    (row,) = [line for line in page if line.startswith(f"| {figure.name} |")]
    assert figure.reason in row
    assert not any(character.isdigit() for character in row.replace(figure.reason, ""))


def test_report_is_stored_by_model_and_date(tmp_path: Path) -> None:
    data, page = write(Report(FACTS, (GOOD, NOT_HERE), emulated=False), tmp_path)
    assert (data.name, page.name) == ("gpu-tesla-t4-2031-02-03.json", "gpu-tesla-t4-2031-02-03.md")
    found = json.loads(data.read_text())
    assert found["facts"] == FACTS
    assert [f["outcome"] for f in found["figures"]] == ["measured", "skipped"]
    assert found["figures"][0]["detail"] == {"samples": 3, "runs": [1]}
    assert "| a \\| b | 1.25 points | at most 2 |  |" in page.read_text()


@pytest.mark.parametrize("report", [Report(FACTS, (GOOD,), emulated=True), Report(FACTS, (NOT_HERE,), emulated=False)])
def test_emulated_and_empty_reports_are_never_stored(report: Report, tmp_path: Path) -> None:
    with pytest.raises(NotMeasuredError):
        write(report, tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- refusals


def test_benchmark_without_gpu_reports_it_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "driver_or_reason", lambda: "no driver")
    monkeypatch.setattr(run, "Bench", lambda **_: pytest.fail("a pool was started"))
    assert run.main([]) == run.NO_GPU
    assert "no driver" in capsys.readouterr().err


@pytest.mark.parametrize(
    "gpus", [[], [{"emulated": True, "available": True}], [{"emulated": False, "available": False}]]
)
def test_emulated_and_busy_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, gpus: list[Any]) -> None:
    pool = Bench()
    monkeypatch.setattr(pool, "_cli", lambda *_: json.dumps({"gpus": gpus}))
    with pytest.raises(NoGpuError):
        pool._one_gpu()


def test_trial_on_emulated_gpus_stores_nothing() -> None:
    results = SCRIPT.parents[1] / "results"
    before = sorted(results.glob("gpu-*"))
    command = (sys.executable, str(SCRIPT), "--emulated", "--quick", "--part", "context")
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "nothing is stored" in done.stdout
    assert "no figure of a real one" in done.stdout
    assert sorted(results.glob("gpu-*")) == before


# --- workers' answers


@pytest.mark.parametrize(
    ("said", "complained", "status", "expected"),
    [
        ('noise\n{"ns": 1}\n', "", 0, {"ns": 1}),
        ('{"skip": "no torch"}\n', "", 0, SkipError),
        ("", "No node can ... [IMPOSSIBLE_REQUEST]", 125, SkipError),
        ('{"ns": 1}\n', "boom", 1, FailedError),
        ("noise\n", "", 0, FailedError),
        ("", "", 0, FailedError),
        ("[1]\n", "", 0, FailedError),
    ],
)
def test_last_line_of_worker_is_its_result(said: str, complained: str, status: int, expected: Any) -> None:
    if isinstance(expected, dict):
        assert answer_of(said, complained, status, "x") == expected
        return
    with pytest.raises(expected):
        answer_of(said, complained, status, "x")


def test_every_script_of_a_part_exists() -> None:
    named = {name for module in PARTS.values() for name in Path(str(module.__file__)).read_text().split('"')}
    scripts = {name for name in named if name.endswith(".py")}
    assert scripts
    assert scripts <= {path.name for path in bench.WORKERS.iterdir()}


# --- sums


class FakeBench(Bench):
    """Answers instead of workers; ``answers`` by script are values or functions of the work."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(quick=True)
        self.folder.rmdir()
        self.gpu = {"memory_mib": 16_000}
        self.answers = {name.replace("_py", ".py"): answer for name, answer in answers.items()}

    def one(self, work: Work) -> dict[str, Any]:
        answer = self.answers[work.script]
        found = answer(work) if callable(answer) else answer
        if isinstance(found, Exception):
            raise found
        return dict(found)

    def together(self, works: Any) -> list[dict[str, Any]]:
        return [self.one(work) for work in works]


def outcomes(found: Any) -> dict[str, Outcome]:
    return {figure.name: figure.outcome for figure in found}


def test_share_error_is_in_percentage_points_of_work() -> None:
    def burnt(work: Work) -> dict[str, Any]:
        done = {"0.1 slice": 1.5, "0.9 slice": 8.5, "0.3 slice": 10.0, "0.3 slice, cap": 4.0}.get(work.place.label, 1.0)
        return {"rounds_per_us": 1.0, "work": done, "launches": 7}

    found = {f.name: f for f in shares.measure(FakeBench(burn_py=burnt, matmul_py=SkipError("no torch")))}
    assert found["0.1:0.9, kernels of 50 and 50 µs"].value == pytest.approx(5)
    assert found["0.5:0.5, kernels of 5000 and 5000 µs"].value == pytest.approx(0)
    assert found["0.3 under cap, alone"].value == pytest.approx(10)
    assert found["0.1:0.9, matrix products"].outcome is Outcome.SKIPPED
    assert found["0.5:0.5, kernels of 50 and 50 µs"].detail["samples"] == 7


def test_tenant_without_gpu_time_is_no_measurement() -> None:
    answers = {"rounds_per_us": 1.0, "work": 0.0, "launches": 0}
    found = outcomes(shares.measure(FakeBench(burn_py=answers, matmul_py=answers)))
    assert set(found.values()) == {Outcome.FAILED}


def test_memory_limit_includes_earlier_use() -> None:
    seen = {"most_mib": 3900.0, "before_mib": 128.0, "total_mib": 4000.0, "tries": 12}
    strange = FakeBench(memory_py=seen | {"total_mib": 16_000.0})
    assert {f.value for f in memory.measure(FakeBench(memory_py=seen))} == {28.0}
    assert set(outcomes(memory.measure(strange)).values()) == {Outcome.FAILED}


def test_result_must_be_equal_with_and_without_slice() -> None:
    def digest(work: Work) -> dict[str, Any]:
        if "jax" in work.arguments:
            raise SkipError("jax is not installed")
        changed = "cupy" in work.arguments and work.place == part(0.5)
        return {"digest": "ab" if changed else "cd", "values": 9}

    found = outcomes(frameworks.measure(FakeBench(frameworks_py=digest)))
    assert found.pop("jax") is Outcome.SKIPPED
    assert found.pop("cupy") is Outcome.FAILED
    assert set(found.values()) == {Outcome.MEASURED}


def test_two_tenants_are_summed_and_impossible_native_run_is_skipped() -> None:
    def speed(work: Work) -> Any:
        return SkipError("no native run") if work.place == NATIVE else {"samples": 64, "steps": 8, "seconds": 2.0}

    found = {f.name: f for f in models.measure(FakeBench(models_py=speed))}
    assert found["resnet50, batch 1, two at once, 0.5 slice"].value == 64.0
    assert found["resnet50, batch 1, whole"].value == 32.0
    assert found["resnet50, batch 1, native"].outcome is Outcome.SKIPPED


def test_kill_test_reports_median_maximum_and_losses() -> None:
    found = list(kills.measure(FakeBench(kills_py={"back_ms": [3.0, 900.0, 5.0], "lost_mib": 0.0})))
    assert [figure.value for figure in found] == [5.0, 900.0, 0.0]


def test_failed_part_keeps_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def halfway(_bench: Bench) -> Any:
        yield GOOD
        raise FailedError("worker died")

    monkeypatch.setattr(kills, "measure", halfway)
    assert [f.outcome for f in run._of_part(FakeBench(), kills)] == [Outcome.MEASURED, Outcome.FAILED]
