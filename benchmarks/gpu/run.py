"""Measure a real GPU: ``python benchmarks/gpu/run.py --budget 540 --out DIR --resume``.

Starts programs through gpupool in a private pool and writes each figure to DIR/figures.jsonl as soon as it is
measured, the most valuable ones first, and report.md and report.html at the end. With a budget, no task is begun that
cannot end in time; ``--resume`` continues with the others. Exit status: 0 if all is measured or skipped with a reason,
1 if a figure failed, 3 without a real GPU (nothing is written), 4 if the budget ended before all was measured.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from bench import PREFIX, Bench, FailedError, NoGpuError, SkipError, end_pool
from facts import driver_or_reason, facts_of
from figures import FIGURES, folder_name, write_report
from parts import PARTS, tasks_of
from parts.tasks import Task

from gpupool.bench.figures import CaseOutcome, Figure, NotMeasuredError, counts, failed, skipped, value_text
from gpupool.bench.results import Result, ResultsFile
from gpupool.domain.errors import GpupoolError

RESULTS = Path(__file__).parent.parent / "results"
NO_GPU, TIME_IS_UP = 3, 4
CLOSING_S = 10.0  # to stop the pool and to write the report
POOL = "pool"  # a file of the folder, with that of the private pool


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, store; the status for the shell."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.emulated and options.out is None:
        parser.error("--emulated needs --out: figures of emulated GPUs are no results of the project")
    if not options.emulated and (why := driver_or_reason()):
        return _refuse(f"There is no real GPU here: {why}.")
    try:
        return _run(options)
    except NoGpuError as none:
        return _refuse(str(none))
    except (FailedError, GpupoolError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped. The figures so far are kept; --resume continues.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part; repeatable")
    parser.add_argument("--quick", action="store_true", help="short windows: to see that it runs")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="S", help="seconds from the program's start")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: benchmarks/results/gpu-<model>-<date>")
    parser.add_argument("--resume", action="store_true", help="continue the run of this folder")
    parser.add_argument("--emulated", action="store_true", help="try it on emulated GPUs; all figures are labelled")
    return parser


def _refuse(why: str) -> int:
    print(f"{why} Nothing was measured and nothing is written.", file=sys.stderr)
    return NO_GPU


def _run(options: argparse.Namespace) -> int:
    deadline = time.monotonic() - running_s() + options.budget
    if options.out is not None and not options.resume:
        _check_new(options.out)
    if options.out is not None:
        _end_former_pool(options.out)
    with Bench(emulated=options.emulated, quick=options.quick, deadline=deadline - CLOSING_S) as bench:
        facts = facts_of(bench)
        folder = options.out or RESULTS / folder_name(facts)
        if not options.resume:
            _check_new(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / POOL).write_text(str(bench.folder))
        results = ResultsFile(folder / FIGURES, facts)
        left = measure_tasks(bench, tasks_of(options.part or list(PARTS)), results)
    (folder / POOL).unlink()
    return _end(results.results, folder, left)


def running_s() -> float:
    """Return the time since this process started. It counts the installation of a pack, which starts this program."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def _check_new(folder: Path) -> None:
    if (folder / FIGURES).exists():
        raise FailedError(f"{folder / FIGURES} exists already. Continue it with --resume, or give another --out.")


def _end_former_pool(folder: Path) -> None:
    """Stop the pool of a run that was killed: its programs would use the GPU."""
    try:
        former = Path((folder / POOL).read_text())
    except OSError:
        return
    if former.name.startswith(PREFIX) and former.is_dir():
        end_pool(former, os.environ | {"GPUPOOL_STATE_DIR": str(former / "state")})


def measure_tasks(bench: Bench, tasks: Sequence[Task], results: ResultsFile) -> list[Task]:
    """Measure what the file lacks, then what failed in an earlier run; return the tasks that did not fit."""
    complete = {part: results.completed_cases(part) for part in PARTS}
    tried = {(result.figure.part, result.case) for result in results.results}
    wanted = [task for task in tasks if task.name not in complete[task.part]]
    left = []
    for task in sorted(wanted, key=lambda task: (task.part, task.name) in tried):
        expected_s = task.seconds / 2 if bench.quick else task.seconds
        if time.monotonic() + expected_s > bench.deadline:
            left.append(task)
            continue
        measured = figures_of(bench, task)
        results.forget(task.part, task.name)
        for figure in measured:
            results.add(task.name, figure)
            print(f"{figure.part}: {figure.name}: {_line(figure)}", flush=True)
    return left


def figures_of(bench: Bench, task: Task) -> Sequence[Figure]:
    """Return the figures of a task: a missing requirement or an error affects only this task."""
    try:
        found = task.measure(bench)
    except SkipError as reason:
        return [skipped(task.part, task.name, str(reason))]
    except (FailedError, NotMeasuredError, OSError, KeyError, ValueError) as error:
        return [failed(task.part, task.name, f"{type(error).__name__}: {error}")]
    return [found] if isinstance(found, Figure) else found


def _line(figure: Figure) -> str:
    if figure.outcome is CaseOutcome.MEASURED:
        return value_text(figure) + (f" (goal: {figure.goal})" if figure.goal else "")
    return f"{figure.outcome.value}: {figure.reason}"


def _end(results: Sequence[Result], folder: Path, left: Sequence[Task]) -> int:
    figures = [result.figure for result in results]
    print(counts(figures))
    if results:
        for path in write_report(results, folder, {name: module.TITLE for name, module in PARTS.items()}):
            print(f"written to {path}")
        if results[0].emulated:
            print("These are emulated GPUs: no figure describes a real one.")
    if left:
        print(f"The budget ends before {len(left)} more tasks: run again with --out {folder} --resume", file=sys.stderr)
        return TIME_IS_UP
    return 1 if any(figure.outcome is CaseOutcome.FAILED for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
