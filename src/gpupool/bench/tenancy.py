"""``tenancy``: one job on all GPUs, two concurrent jobs on half of them each, and isolated tenants on one node.

Jobs on several GPUs train together by PyTorch, else by Open MPI with the NumPy proxy. Tenants are independent jobs
with equal slices of one GPU. *Overlap* in the details is the part of the longest run in which all ran: a sum of rates
means little if it is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from gpupool.bench.figures import Figure
from gpupool.bench.run import BenchCase
from gpupool.bench.scaling import LAUNCHERS, MAX_RANKS, RankLauncher, answer_of_ranks, start_ranks, usable_gpus
from gpupool.bench.session import BenchSession, SkipError
from gpupool.bench.train import training_arguments, training_detail
from gpupool.client import Job

BATCH = 32
QUICK_BATCH = 8
TENANTS = (1, 2, 4)
JOINT = LAUNCHERS[:2]  # torchrun, else MPI


def cases(_session: BenchSession) -> list[BenchCase]:
    """Return the cases."""
    return [
        BenchCase("one job on all GPUs", partial(_jobs, count=1)),
        BenchCase("two jobs on half of the GPUs each", partial(_jobs, count=2)),
        *(BenchCase(_tenants_name(count), partial(_tenants, count=count)) for count in TENANTS),
    ]


def _batch(session: BenchSession) -> int:
    return QUICK_BATCH if session.settings.quick else BATCH


def _jobs(session: BenchSession, count: int) -> Iterator[Figure]:
    ranks = min(MAX_RANKS, usable_gpus(session)) // 2 * 2
    if ranks < 2:
        raise SkipError("this needs two free GPUs at least")
    answers = _first_that_runs(lambda launcher: _together(session, launcher, count, ranks // count))
    case = "one job on all GPUs" if count == 1 else "two jobs on half of the GPUs each"
    yield from _figures(session, case, "one job on all GPUs", answers)


def _first_that_runs(run: Callable[[RankLauncher], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    reasons = []
    for launcher in JOINT:
        try:
            return run(launcher)
        except SkipError as error:
            reasons.append(f"{launcher.name}: {error}")
    raise SkipError("; ".join(reasons))


def _together(session: BenchSession, launcher: RankLauncher, count: int, ranks: int) -> list[dict[str, Any]]:
    with session.jobs() as jobs:
        for _ in range(count):
            start_ranks(session, launcher, ranks, _batch(session))
        return [answer_of_ranks(session, job) for job in jobs]


def _tenants_name(count: int) -> str:
    return "one tenant with a whole GPU" if count == 1 else f"{count} tenants with 1/{count} of a GPU"


def _tenants(session: BenchSession, count: int) -> Iterator[Figure]:
    arguments = training_arguments(session, _batch(session))
    with session.jobs() as jobs:
        for _ in range(count):
            session.submit_program("training", *arguments, fraction=1 / count, placement="pack")
        answers = [session.answer(job) | {"nodes": _nodes(job)} for job in jobs]
    yield from _figures(session, _tenants_name(count), _tenants_name(1), answers)


def _nodes(job: Job) -> list[str]:
    return [one.node for one in job.detail().replicas if one.node]


def _figures(session: BenchSession, case: str, baseline: str, answers: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """Yield the sum of all jobs, and the slowest compared with the fastest."""
    program, rates = answers[0]["program"], [answer["images_per_s"] for answer in answers]
    steps = min(answer["steps"] for answer in answers)
    detail = training_detail(answers[0]) | {
        "jobs_images_per_s": rates,
        "nodes": [answer["nodes"] for answer in answers],
        "overlap": overlap([(answer["ended_at"] - answer["train_s"], answer["ended_at"]) for answer in answers]),
    }
    name = f"{case}: sum, {program}"
    yield session.figure(name, sum(rates), "images/s", samples=steps, baseline=f"{baseline}: sum, {program}", **detail)
    if len(rates) > 1:
        yield session.figure(f"{case}: slowest / fastest", min(rates) / max(rates), "", samples=steps)


def overlap(spans: Sequence[tuple[float, float]]) -> float:
    """Return the common part of all spans divided by the longest one."""
    common = min(end for _, end in spans) - max(begin for begin, _ in spans)
    return max(0.0, common) / max(end - begin for begin, end in spans)
