"""``bench``: measure the pool with small benchmarks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gpupool.cli import lazy_typer as typer
from gpupool.cli.commands.common import AsJson, add_group, command, with_options
from gpupool.cli.output import notify, out_style, show, show_json
from gpupool.cli.render.machines import EMULATED
from gpupool.cli.render.text import style_of, table
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.specs.job_options import OUTPUT, PROGRAM, Option, OptionKind

if TYPE_CHECKING:
    from gpupool.bench.comparison import Pair
    from gpupool.bench.figures import Figure
    from gpupool.bench.results import Result

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130
BAR_WIDTH = 20
_TEXT, _FLAG = OptionKind.TEXT, OptionKind.FLAG
RUN_OPTIONS = (
    Option("quick", "--quick", _FLAG, "Measure less: at most two minutes on two cores.", PROGRAM),
    Option("case", "--case", _TEXT, "Measure only cases with this text in the name, and a baseline.", PROGRAM, "TEXT"),
    Option("project", "--project", _TEXT, "Run the jobs in this project.", PROGRAM, "NAME"),
    Option("python", "--python", _TEXT, "Set the Python of the jobs; default: python3 of your PATH.", PROGRAM, "PATH"),
    Option("output", "--output -o", _TEXT, "Write the JSON lines to this new file.", OUTPUT, "FILE"),
    Option("resume", "--resume", _TEXT, "Measure what this results file lacks, and append it.", OUTPUT, "FILE"),
    Option("html", "--html", _TEXT, "Also write the figures, and published ones, to an HTML page.", OUTPUT, "FILE"),
    Option("json", "--json", _FLAG, "Print each figure as a JSON line as soon as it is measured.", OUTPUT),
)
IMAGE = Option("image", "--image -i", _TEXT, "Use this image for the case in a container.", PROGRAM, "IMAGE")
HEADERS = ("CASE", "FIGURE", "VALUE", "RATIO", "BASELINE", "GOAL", "NOTE")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = add_group(
        app,
        "bench",
        "Measure the pool with small benchmarks that run as jobs. Figures of emulated GPUs are labelled.",
        "gpupool bench slices --quick",
        "gpupool bench queue",
    )
    command(group, "gpupool bench train", "gpupool bench train --python ~/envs/torch/bin/python -o train.jsonl")(train)
    command(group, "gpupool bench overhead --quick", "gpupool bench overhead --image pytorch/pytorch:2.4.0")(overhead)
    command(group, "gpupool bench slices", "gpupool bench slices --quick -o slices.jsonl")(slices)
    command(group, "gpupool bench queue --quick", "gpupool bench queue --resume queue.jsonl")(queue)
    command(group, "gpupool bench scaling", "gpupool bench scaling --quick --html scaling.html")(scaling)
    command(group, "gpupool bench tenancy", "gpupool bench tenancy --quick")(tenancy)
    command(group, "gpupool bench compare before.jsonl after.jsonl")(compare)
    command(group, "gpupool bench report train.jsonl slices.jsonl -o report.html")(report)


@with_options(RUN_OPTIONS)
def train(**values: Any) -> int:
    """Measure the training of ResNet-50 on synthetic images on one GPU, by batch size.

    Uses PyTorch or TensorFlow of the job's Python. Without them a NumPy proxy with as many operations runs, and its
    figures say so. On a CPU the images are smaller.
    """
    return _run("train", values)


@with_options((*RUN_OPTIONS, IMAGE))
def overhead(**values: Any) -> int:
    """Measure the cost of the pool: the same training bare, with run, in slices, in a container, and remotely.

    Figures: images per second and start-up, at a small and a large batch, compared with the program without the pool.
    """
    return _run("overhead", values)


@with_options(RUN_OPTIONS)
def slices(**values: Any) -> int:
    """Measure how slices divide the time of one GPU.

    Cases: a whole GPU, one slice, two and many slices, 20 of 0.05 and 50 of 0.02. Figures: throughput compared with the
    whole GPU, and the largest error of a share in percentage points. Other work on the GPU disturbs the figures.
    """
    return _run("slices", values)


@with_options(RUN_OPTIONS)
def queue(**values: Any) -> int:
    """Measure launch latency and jobs per second, compared with starting the program directly.

    Where Slurm is installed, the same jobs also go through srun and sbatch.
    """
    return _run("queue", values)


@with_options(RUN_OPTIONS)
def scaling(**values: Any) -> int:
    """Measure weak and strong scaling over the GPUs of the pool, by torchrun, Open MPI and TensorFlow.

    Figures: images per second, efficiency, and the part of the time that the all-reduce takes. Open MPI runs a NumPy
    proxy, and its figures say so. Launchers that are not installed are skipped.
    """
    return _run("scaling", values)


@with_options(RUN_OPTIONS)
def tenancy(**values: Any) -> int:
    """Measure one job on all GPUs, two concurrent jobs on half of them each, and tenants with slices of one GPU.

    Figures: images per second of all jobs together, and the slowest job compared with the fastest.
    """
    return _run("tenancy", values)


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A results file.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another results file.")],
    *,
    json: AsJson = False,
) -> None:
    """Compare two results files: the figures of both, and the ratio B / A.

    Differences of the conditions (machine, GPUs, version, options) are printed first.
    """
    from gpupool.bench import comparison
    from gpupool.bench.results import read_results

    a, b = read_results(first), read_results(second)
    pairs, different = comparison.compare(a, b), comparison.differences(a, b)
    if json:
        show_json({"differences": different, "figures": [pair.to_dict() for pair in pairs]})
        return
    for sentence in different:
        notify(sentence)
    show([*_label([*a, *b]), *table(("BENCHMARK", "FIGURE", "A", "B", "B / A"), _pair_rows(pairs), out_style())])


def _pair_rows(pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
    ratios = ["" if pair.ratio is None else f"{pair.ratio:.3g}" for pair in pairs]
    return [
        (pair.part, pair.name, _value(pair.first), _value(pair.second), ratio)
        for pair, ratio in zip(pairs, ratios, strict=True)
    ]


def report(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Results files.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Write the page to this file.")],
) -> None:
    """Write results to one HTML page, with published figures alongside. The page loads no other file."""
    from gpupool.bench.results import read_results

    _write_page(output, [result for file in files for result in read_results(file)])


def _write_page(path: Path, results: Sequence[Result]) -> None:
    from gpupool.bench.report import page

    try:
        path.write_text(page(results), encoding="utf-8")
    except OSError as error:
        sentence = f"{path} cannot be written: {error.strerror}."
        raise GpupoolError(ErrorCode.INVALID_FILE, sentence, "Give a writable file.") from error
    notify(f"report: {path}")


def _run(name: str, values: dict[str, Any]) -> int:
    """Run a benchmark and print its table. Return 1 if a case failed, 130 after Ctrl-C."""
    from gpupool.bench.catalogue import BENCHMARKS
    from gpupool.bench.figures import CaseOutcome, counts
    from gpupool.bench.results import ResultsFile
    from gpupool.bench.run import facts_of, run_cases
    from gpupool.bench.session import BenchSession, BenchSettings
    from gpupool.client import Client

    path = _results_path(name, values)
    settings = BenchSettings(
        bool(values.get("quick")), values.get("python", "python3"), values.get("project"), values.get("image", "")
    )
    with Client() as client:
        session = BenchSession(name, client, settings)
        results = ResultsFile(path, facts_of(client, _command_line(), quick=settings.quick))
        wanted = values.get("case", "").lower()
        every = BENCHMARKS[name](session)
        chosen = [case for case in every if wanted in case.name.lower()]
        if not chosen:
            raise GpupoolError(
                ErrorCode.INVALID_REQUEST,
                f"No case of {name} contains '{wanted[:40]}'.",
                "The report and the documentation list the cases.",
            )
        cases = [case for case in every if case in chosen or case.needed]
        progress = _BenchBar(json=bool(values.get("json")))
        try:
            run_cases(cases, session, results, progress)
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        progress.clear()
    found = [result for result in results.results if result.figure.part == name]
    if not values.get("json"):
        show(result_lines(found))
    if "html" in values:
        _write_page(Path(values["html"]), found)
    notify(f"{counts(result.figure for result in found)}; results: {path}")
    if interrupted:
        options = " --quick" if settings.quick else ""
        options += f" --case {shlex.quote(values['case'])}" if wanted else ""
        notify(f"interrupted; continue with: gpupool bench {name}{options} --resume {path}")
        return EXIT_INTERRUPTED
    return EXIT_FAILED if any(result.figure.outcome is CaseOutcome.FAILED for result in found) else 0


def _results_path(name: str, values: dict[str, Any]) -> Path:
    if "resume" in values:
        if "output" in values:
            raise typer.BadParameter("--resume appends to its own file; leave out --output")
        path = Path(values["resume"])
        if not path.exists():
            raise GpupoolError(ErrorCode.INVALID_FILE, f"{path} does not exist.", "Give the results file to continue.")
        return path
    stamp = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    path = Path(values.get("output") or f"gpupool-bench-{name}-{stamp}.jsonl")
    try:
        path.touch(exist_ok=False)
    except FileExistsError as error:
        hint = "Continue it with --resume, or give another file."
        raise GpupoolError(ErrorCode.INVALID_FILE, f"{path} exists already.", hint) from error
    except OSError as error:
        sentence = f"{path} cannot be written: {error.strerror}."
        raise GpupoolError(ErrorCode.INVALID_FILE, sentence, "Give a writable file with --output.") from error
    return path


def _command_line() -> str:
    return shlex.join(["gpupool", *sys.argv[1:]])


def result_lines(results: Sequence[Result]) -> list[str]:
    """Return the table of the figures; a first line labels figures of emulated GPUs."""
    rows = []
    for result in results:
        figure = result.figure
        ratio = "" if figure.ratio is None else f"{figure.ratio:.3g}"
        name = figure.name.removeprefix(f"{result.case}: ")
        rows.append((result.case, name, _value(figure), ratio, figure.baseline, figure.goal, figure.reason))
    return [*_label(results), *table(HEADERS, rows, out_style())]


def _label(results: Sequence[Result]) -> list[str]:
    text = f"{EMULATED}; no figure describes a real GPU"
    return [out_style().bold(text)] if any(result.emulated for result in results) else []


def _value(figure: Figure | None) -> str:
    from gpupool.bench.figures import CaseOutcome, value_text

    if figure is None:
        return ""
    return value_text(figure) if figure.outcome is CaseOutcome.MEASURED else figure.outcome.value


class _BenchBar:
    """A bar on a terminal, else one line for each case; with ``json`` also each figure on stdout."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._bar = sys.stderr.isatty()

    def began(self, done: int, total: int, case: str) -> None:
        """Show the case that begins."""
        if self._bar:
            filled = BAR_WIDTH * done // total
            bar = "#" * filled + "." * (BAR_WIDTH - filled)
            sys.stderr.write(f"\r\x1b[K{style_of(sys.stderr).dim(f'[{bar}] {done + 1}/{total}')} {case}")
            sys.stderr.flush()
        else:
            notify(f"{done + 1}/{total} {case}")

    def added(self, result: Result) -> None:
        """Print the figure as JSON, if that is wanted."""
        if self._json:
            import json

            show([json.dumps(result.to_dict())])

    def clear(self) -> None:
        """Remove the bar."""
        if self._bar:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
