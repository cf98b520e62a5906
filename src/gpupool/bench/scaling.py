"""``scaling``: the same training on 1, 2, 4, ... ranks with one GPU each, by torchrun, Open MPI and TensorFlow.

Weak scaling keeps the batch of each rank, strong scaling keeps the batch of all ranks together. The baseline is one
rank under the same launcher. Efficiency is the speed-up divided by the number of ranks. The all-reduce share is the
part of the time in which rank 0 adds gradients; it does not overlap with the computation here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpupool.bench.figures import Figure
from gpupool.bench.run import BenchCase
from gpupool.bench.session import BenchSession, SkipError
from gpupool.bench.train import training_arguments, training_detail
from gpupool.client import Job

MAX_RANKS = 8
LAUNCHER_ROLE = "launcher"


@dataclass(frozen=True, slots=True)
class RankLauncher:
    """A launcher of ranks: the pool's framework, and the one of our program. ``needs`` is a program of this machine."""

    name: str
    framework: str
    training: str
    module: tuple[str, ...] = ()
    needs: str = ""
    reports_reduce: bool = True


LAUNCHERS = (
    RankLauncher("torchrun", "torch", "torch", module=("-m", "torch.distributed.run")),
    RankLauncher("MPI", "mpi", "numpy", needs="mpirun"),
    RankLauncher("TensorFlow", "tf", "tensorflow", reports_reduce=False),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """One run: ranks, and the batch of each."""

    kind: str
    ranks: int
    batch: int

    def name(self, launcher: RankLauncher) -> str:
        """Return the name of the case."""
        return f"{launcher.name}, {self.kind}, {self.ranks} {'rank' if self.ranks == 1 else 'ranks'}"


def rank_counts(gpus: int) -> list[int]:
    """Return powers of two up to the number of GPUs, and at most ``MAX_RANKS``."""
    return [count for count in (1, 2, 4, MAX_RANKS) if count <= gpus]


def usable_gpus(session: BenchSession) -> int:
    """Return how many GPUs are in order."""
    return sum(gpu.available for gpu in session.client.gpus())


def cases(session: BenchSession) -> list[BenchCase]:
    """Return the cases."""
    counts = rank_counts(usable_gpus(session))
    batch = 8 if session.settings.quick else 64
    if session.settings.quick and counts:
        counts = sorted({counts[0], counts[-1]})
    scales = [Scale("weak", count, batch) for count in counts]
    scales += [Scale("strong", count, batch * counts[-1] // count) for count in counts]
    return [
        BenchCase(scale.name(launcher), partial(_scale, launcher=launcher, scale=scale))
        for launcher in LAUNCHERS
        for scale in scales
    ]


def start_ranks(session: BenchSession, launcher: RankLauncher, ranks: int, batch: int) -> Job:
    """Submit a gang with one GPU for each rank. Raises ``SkipError`` if a program is missing."""
    if launcher.needs and shutil.which(launcher.needs) is None:
        raise SkipError(f"{launcher.needs} is not installed on this machine")
    arguments = training_arguments(session, batch, "--framework", launcher.training)
    return session.submit_program(
        "training",
        *arguments,
        interpreter=launcher.module,
        gpus=1,
        placement="spread",
        gang={"workers": ranks},
        framework=launcher.framework,
        env={"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


def answer_of_ranks(session: BenchSession, job: Job) -> dict[str, Any]:
    """Return the answer of rank 0, with the nodes of the workers."""
    job.wait_started()
    replicas = job.detail().replicas
    index = next((one.index for one in replicas if one.role == LAUNCHER_ROLE), 0)
    answer = session.answer(job, index=index)
    workers = [one.node for one in job.detail().replicas if one.role != LAUNCHER_ROLE]
    return answer | {"nodes": sorted({node for node in workers if node})}


def _scale(session: BenchSession, launcher: RankLauncher, scale: Scale) -> Iterator[Figure]:
    with session.jobs():
        answer = answer_of_ranks(session, start_ranks(session, launcher, scale.ranks, scale.batch))
    case, one = scale.name(launcher), Scale(scale.kind, 1, scale.batch).name(launcher)
    program = answer["program"]
    detail = training_detail(answer) | {"nodes": answer["nodes"]}
    throughput = session.figure(
        f"{case}: {program}",
        answer["images_per_s"],
        "images/s",
        samples=answer["steps"],
        baseline=f"{one}: {program}",
        **detail,
    )
    yield throughput
    if throughput.ratio is not None and scale.ranks > 1:
        efficiency = 100 * throughput.ratio / scale.ranks
        yield session.figure(f"{case}: efficiency", efficiency, "%", samples=answer["steps"])
    if launcher.reports_reduce and scale.ranks > 1:
        share = 100 * answer["reduce_share"]
        yield session.figure(f"{case}: all-reduce share", share, "%", samples=answer["steps"])
