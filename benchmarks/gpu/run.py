"""All figures of a real GPU in one command: ``python benchmarks/gpu/run.py [--part NAME ...] [--quick]``.

Each part starts its programs through gpupool, in a private pool, and prints its figures, and a reason for each figure
that it could not measure. The result goes to benchmarks/results/gpu-<model>-<date>.json with a table beside it. On a
machine without a real GPU it says so, writes nothing, and ends with status 3.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parent))

from bench import Bench, FailedError, NoGpuError, SkipError
from facts import driver_or_reason, facts_of
from figures import Report, markdown, write
from parts import PARTS

from gpupool.bench.figures import Figure, Outcome, counts, failed, skipped, value_text

RESULTS = Path(__file__).parent.parent / "results"
NO_GPU = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, store; the status for the shell."""
    options = _parser().parse_args(arguments)
    if not options.emulated and (why := driver_or_reason()):
        return _refuse(f"There is no real GPU here: {why}.")
    try:
        with Bench(emulated=options.emulated, quick=options.quick) as bench:
            report = Report(facts_of(bench), tuple(_figures(bench, options.part or list(PARTS))), bench.emulated)
    except NoGpuError as none:
        return _refuse(str(none))
    return _keep(report)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part; repeatable")
    parser.add_argument("--quick", action="store_true", help="short windows: to see that it runs")
    parser.add_argument("--emulated", action="store_true", help=argparse.SUPPRESS)  # tries the parts; stores nothing
    return parser


def _refuse(why: str) -> int:
    print(f"{why} Nothing was measured and nothing is written.", file=sys.stderr)
    return NO_GPU


def _figures(bench: Bench, names: Sequence[str]) -> list[Figure]:
    found: list[Figure] = []
    for name in names:
        print(f"\n{PARTS[name].TITLE}", flush=True)
        for figure in _of_part(bench, PARTS[name]):
            print(f"  {figure.name}: {_line(figure)}", flush=True)
            found.append(figure)
    return found


def _of_part(bench: Bench, part: ModuleType) -> Iterator[Figure]:
    """Return the results of a part; an unexpected error becomes a failed result and does not end the run."""
    try:
        yield from part.measure(bench)
    except SkipError as reason:
        yield skipped(part.TITLE, "the rest", str(reason))
    except (FailedError, OSError, KeyError, ValueError) as error:
        yield failed(part.TITLE, "the rest", f"{type(error).__name__}: {error}")


def _line(figure: Figure) -> str:
    if figure.outcome is Outcome.MEASURED:
        return value_text(figure) + (f" (goal: {figure.goal})" if figure.goal else "")
    return f"{figure.outcome.value}: {figure.reason}"


def _keep(report: Report) -> int:
    print(f"\n{counts(report.figures)}")
    if report.emulated:
        print(markdown(report))
        print("These are emulated GPUs: nothing is stored.")
        return 0
    if not any(figure.outcome is Outcome.MEASURED for figure in report.figures):
        return _refuse("No figure could be measured.")
    for path in write(report, RESULTS):
        print(f"written to {path}")
    return 1 if any(figure.outcome is Outcome.FAILED for figure in report.figures) else 0


if __name__ == "__main__":
    sys.exit(main())
