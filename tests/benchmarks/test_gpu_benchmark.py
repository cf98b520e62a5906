"""The benchmark for real GPUs, as far as a machine without one can tell: its report, its sums, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import bench
import pytest
import run
from bench import NATIVE, Bench, FailedError, NoGpuError, SkipError, Work, answer_of, part
from figures import FIGURES, folder_name, markdown, write_report
from parts import PARTS, frameworks, kills, memory, models, shares, tasks_of
from parts.tasks import Task

from gpupool.bench.figures import CaseOutcome, Figure, NotMeasuredError, failed, measured, skipped, value_text
from gpupool.bench.results import Result, ResultsFile, read_results
from requires import ROOT, ptxas

SCRIPT = Path(run.__file__)
MACHINE = {
    "date": "2031-02-03T04:05:06+00:00",
    "cpu": "a processor",
    "cores": 2,
    "kernel": "6.1",
    "versions": {"gpupool": "1", "torch": "9"},
    "commit": "abc",
    "command": "python run.py",
}
NODE = {"name": "n1", "gpus": ["Tesla T4"], "driver": "999.1", "cuda": "13.0", "memory_mib": 16384}
FACTS = {"format": 1, "quick": False, "emulated": False, "machine": MACHINE, "pool": {"nodes": [NODE]}}
GOOD = measured("Part", "a | b", 1.25, "points", samples=3, goal="at most 2", runs=[1])
NOT_HERE = skipped("Part", "c", "torch is not installed")


# --- figures


@pytest.mark.parametrize(("value", "samples"), [(float("nan"), 3), (float("inf"), 3), (1.0, 0)])
def test_unmeasured_value_is_no_result(value: float, samples: int) -> None:
    with pytest.raises(NotMeasuredError):
        measured("Part", "x", value, "ms", samples=samples)


def row_of(page: str, figure: Figure) -> str:
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {figure.name} |")]
    return row


@pytest.mark.parametrize("figure", [NOT_HERE, failed("Part", "d", "status 1")])
def test_result_without_number_is_empty(figure: Figure) -> None:
    with pytest.raises(NotMeasuredError):
        value_text(figure)
    row = row_of(markdown([Result("case", figure, FACTS)], {}), figure)
    assert figure.reason in row
    assert not any(character.isdigit() for character in row.replace(figure.reason, ""))


def test_report_has_conditions_and_all_figures(tmp_path: Path) -> None:
    results = [Result(figure.name, figure, FACTS) for figure in (GOOD, NOT_HERE)]
    table, html = write_report(results, tmp_path, {"Part": "Title of the part"})
    text = table.read_text()
    assert text.startswith("# Tesla T4, 2031-02-03")
    assert "## Title of the part" in text
    assert "driver: 999.1, CUDA 13.0" in text
    assert "| a \\| b | 1.25 points | at most 2 |  |" in text
    assert "torch is not installed" in row_of(text, NOT_HERE)
    assert "torch is not installed" in html.read_text()
    assert folder_name(FACTS) == "gpu-tesla-t4-2031-02-03"


def test_report_of_emulated_gpus_is_labelled(tmp_path: Path) -> None:
    table, html = write_report([Result("case", GOOD, FACTS | {"emulated": True})], tmp_path, {})
    assert table.read_text().startswith("# Emulated GPUs: no figure of a real one")
    assert "no figure of this page describes a real GPU" in html.read_text()


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


def test_emulated_run_needs_a_folder_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["--emulated"])
    assert "--emulated needs --out" in capsys.readouterr().err


def test_earlier_figures_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / FIGURES).write_text("")
    assert run.main(["--emulated", "--out", str(tmp_path)]) == 1
    assert "--resume" in capsys.readouterr().err


# --- order, budget and resumption


def task(name: str, found: Figure | Exception, seconds: float = 1.0) -> Task:
    def measure(_bench: Bench) -> Figure:
        if isinstance(found, Exception):
            raise found
        return found

    return Task("kills", name, seconds, measure)


def figure(name: str, value: float = 1.0) -> Figure:
    return measured("kills", name, value, "ms", samples=1)


def test_tasks_are_ordered_by_value() -> None:
    tasks = tasks_of(list(PARTS))
    assert [one.tier for one in tasks] == sorted(one.tier for one in tasks)
    assert tasks[0].part == "context"
    assert len({(one.part, one.name) for one in tasks}) == len(tasks)
    assert {one.part for one in tasks} == set(PARTS)
    assert {one.part for one in tasks_of(["kills"])} == {"kills"}


def test_tasks_that_do_not_fit_are_left(tmp_path: Path) -> None:
    results = ResultsFile(tmp_path / FIGURES, FACTS)
    pool = FakeBench()
    pool.deadline = time.monotonic() + 1000
    tasks = [task("long", figure("long"), 2001), task("short", figure("short"))]
    assert run.measure_tasks(pool, tasks, results) == [tasks[0]]
    assert [one.case for one in read_results(results.path)] == ["short"]


def test_resumed_run_measures_what_is_missing_before_what_failed(tmp_path: Path) -> None:
    path = tmp_path / FIGURES
    first = [task("good", figure("good", 1)), task("bad", FailedError("boom")), task("skip", SkipError("no torch"))]
    run.measure_tasks(FakeBench(), first, ResultsFile(path, FACTS))
    second = [*(task(one.name, figure(one.name, 2)) for one in first), task("new", figure("new", 2))]
    assert run.measure_tasks(FakeBench(), second, ResultsFile(path, FACTS)) == []
    found = read_results(path)
    assert [(one.case, one.figure.outcome.value, one.figure.value) for one in found] == [
        ("good", "measured", 1),
        ("skip", "skipped", None),
        ("new", "measured", 2),
        ("bad", "measured", 2),
    ]


def test_worker_is_ended_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = FakeBench()
    pool.deadline = time.monotonic() + 0.2
    process = subprocess.Popen(["sleep", "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with pytest.raises(FailedError, match="did not end within"):
        pool._result(process, Work(NATIVE, "burn.py"))
    assert process.poll() is not None


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


def ptx_of(source: str) -> str:
    """Return the kernels in a program, for any GPU from sm_75 on."""
    text = (ROOT / source).read_text()
    if source.endswith(".c"):
        (literals,) = re.findall(r"ptx\[\] = (.*);", text)
        return "".join(re.findall(r'"([^"]*)"', literals)).replace("\\n", "\n")
    (found,) = re.findall(r'PTX = """(.*?)"""', text, re.DOTALL)
    return str(found.format(target=75))


@pytest.mark.needs("ptxas")
@pytest.mark.parametrize("capability", [75, 80, 86, 89, 90, 100, 120])
@pytest.mark.parametrize(
    "source",
    [
        "benchmarks/gpu/workers/_driver.py",
        "benchmarks/gpu/workers/launch.c",
        "src/gpupool/bench/programs/kernel_loop.py",
    ],
)
def test_kernels_assemble(tmp_path: Path, source: str, capability: int) -> None:
    assembler = ptxas()
    assert assembler is not None
    (tmp_path / "kernels.ptx").write_text(ptx_of(source))
    command = [assembler, f"-arch=sm_{capability}", "-v", "kernels.ptx", "-o", "kernels.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Compiling entry function" in done.stdout + done.stderr


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


def measure(part: ModuleType, pool: Bench) -> list[Figure]:
    return [figure for one in part.tasks() for figure in run.figures_of(pool, one)]


def outcomes(found: list[Figure]) -> dict[str, CaseOutcome]:
    return {figure.name: figure.outcome for figure in found}


def test_share_error_is_in_percentage_points_of_work() -> None:
    def burnt(work: Work) -> dict[str, Any]:
        done = {"0.1 slice": 1.5, "0.9 slice": 8.5, "0.3 slice": 10.0, "0.3 slice, cap": 4.0}.get(work.place.label, 1.0)
        return {"rounds_per_us": 1.0, "work": done, "launches": 7}

    found = {f.name: f for f in measure(shares, FakeBench(burn_py=burnt, matmul_py=SkipError("no torch")))}
    assert found["0.1:0.9, kernels of 50 and 50 µs"].value == pytest.approx(5)
    assert found["0.5:0.5, kernels of 5000 and 5000 µs"].value == pytest.approx(0)
    assert found["0.3 under cap, alone"].value == pytest.approx(10)
    assert found["0.1:0.9, matrix products"].outcome is CaseOutcome.SKIPPED
    assert found["0.5:0.5, kernels of 50 and 50 µs"].detail["samples"] == 7


def test_tenant_without_gpu_time_is_no_measurement() -> None:
    answers = {"rounds_per_us": 1.0, "work": 0.0, "launches": 0}
    found = outcomes(measure(shares, FakeBench(burn_py=answers, matmul_py=answers)))
    assert set(found.values()) == {CaseOutcome.FAILED}


def test_memory_limit_includes_earlier_use() -> None:
    seen = {"most_mib": 3900.0, "before_mib": 128.0, "total_mib": 4000.0, "tries": 12}
    strange = FakeBench(memory_py=seen | {"total_mib": 16_000.0})
    assert {f.value for f in measure(memory, FakeBench(memory_py=seen))} == {28.0}
    assert set(outcomes(measure(memory, strange)).values()) == {CaseOutcome.FAILED}


def test_result_must_be_equal_with_and_without_slice() -> None:
    def digest(work: Work) -> dict[str, Any]:
        if "jax" in work.arguments:
            raise SkipError("jax is not installed")
        changed = "cupy" in work.arguments and work.place == part(0.5)
        return {"digest": "ab" if changed else "cd", "values": 9}

    found = outcomes(measure(frameworks, FakeBench(frameworks_py=digest)))
    assert found.pop("jax") is CaseOutcome.SKIPPED
    assert found.pop("cupy") is CaseOutcome.FAILED
    assert set(found.values()) == {CaseOutcome.MEASURED}


def test_two_tenants_are_summed_and_impossible_native_run_is_skipped() -> None:
    def speed(work: Work) -> Any:
        return SkipError("no native run") if work.place == NATIVE else {"samples": 64, "steps": 8, "seconds": 2.0}

    found = {f.name: f for f in measure(models, FakeBench(models_py=speed))}
    assert found["resnet50, batch 1, two at once, 0.5 slice"].value == 64.0
    assert found["resnet50, batch 1, whole"].value == 32.0
    assert found["resnet50, batch 1, native"].outcome is CaseOutcome.SKIPPED


def test_kill_test_reports_median_maximum_and_losses() -> None:
    found = measure(kills, FakeBench(kills_py={"back_ms": [3.0, 900.0, 5.0], "lost_mib": 0.0}))
    assert [figure.value for figure in found] == [5.0, 900.0, 0.0]
