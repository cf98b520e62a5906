"""Measure the cases of a benchmark one after another and write each figure at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpupool.bench.figures import CaseOutcome, Figure, NotMeasuredError, failed, skipped
from gpupool.bench.machine import describe_machine
from gpupool.bench.results import Result, ResultsFile
from gpupool.bench.session import BenchSession, MeasureError, SkipError
from gpupool.client import Client, JobFailed
from gpupool.domain.errors import ErrorCode, GpupoolError

IMPOSSIBLE = (ErrorCode.IMPOSSIBLE_REQUEST, ErrorCode.UNSUPPORTED)


@dataclass(frozen=True, slots=True)
class BenchCase:
    """One step of a benchmark: its name, how it is measured, and whether other cases need its figures."""

    name: str
    measure: Callable[[BenchSession], Iterable[Figure]]
    needed: bool = False


class BenchProgress(Protocol):
    """Shows how far a run is."""

    def began(self, done: int, total: int, case: str) -> None:
        """Show the case that begins after ``done`` of ``total`` cases."""

    def added(self, result: Result) -> None:
        """Show a figure."""


def facts_of(client: Client, command: str, *, quick: bool) -> dict[str, Any]:
    """Return the conditions of a run: machine, versions, nodes and GPUs, command, quick and emulated."""
    pool, nodes = client.pool(), client.nodes()
    return {
        "quick": quick,
        "emulated": pool.emulated,
        "machine": describe_machine(command),
        "pool": {
            "version": pool.version,
            "nodes": [
                {
                    "name": node.name,
                    "cpus": node.cpus,
                    "driver": node.driver_version,
                    "cuda": node.cuda_version,
                    "gpus": [gpu.model for gpu in node.gpus],
                    "sharing": node.sharing,
                }
                for node in nodes
            ],
        },
    }


def run_cases(cases: Sequence[BenchCase], session: BenchSession, results: ResultsFile, progress: BenchProgress) -> None:
    """Measure the cases that the results file lacks. Ctrl-C passes; figures so far are in the file then."""
    completed = results.completed_cases(session.part)
    for result in results.results:
        if result.figure.part == session.part and result.figure.outcome is CaseOutcome.MEASURED:
            session.remember(result.figure)
    for number, case in enumerate(cases):
        progress.began(number, len(cases), case.name)
        if case.name in completed:
            continue
        results.forget(session.part, case.name)
        for figure in _measure(case, session):
            if figure.outcome is CaseOutcome.MEASURED:
                session.remember(figure)
            progress.added(results.add(case.name, figure))


def _measure(case: BenchCase, session: BenchSession) -> list[Figure]:
    """Return all figures of a case: a case in the file is complete, so that a run can be resumed after it."""
    try:
        return list(case.measure(session))
    except SkipError as error:
        return [skipped(session.part, case.name, str(error))]
    except GpupoolError as error:
        if error.code in IMPOSSIBLE:
            return [skipped(session.part, case.name, error.message)]
        return [failed(session.part, case.name, f"{error.message} [{error.code}]")]
    except (MeasureError, NotMeasuredError, JobFailed, TimeoutError) as error:
        return [failed(session.part, case.name, str(error))]
