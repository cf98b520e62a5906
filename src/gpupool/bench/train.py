"""``train``: images per second of ResNet-50 on synthetic images on one GPU, by batch size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from gpupool.bench.figures import Figure
from gpupool.bench.run import BenchCase
from gpupool.bench.session import BenchSession

PROGRAM = "training"
BATCHES = (1, 8, 32, 64, 128, 256)
QUICK_BATCHES = (1, 8, 32)


def cases(session: BenchSession) -> list[BenchCase]:
    """Return the cases."""
    batches = QUICK_BATCHES if session.settings.quick else BATCHES
    return [BenchCase(f"batch {batch}", partial(_train, batch=batch, first=batches[0])) for batch in batches]


def training_seconds(session: BenchSession) -> float:
    """Return how long a program trains."""
    return 2.0 if session.settings.quick else 20.0


def training_arguments(session: BenchSession, batch: int, *more: str) -> list[str]:
    """Return the arguments of the training program."""
    return ["--batch", str(batch), "--seconds", f"{training_seconds(session):g}", *more]


def training_detail(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the basis of a figure from the program's answer."""
    return {name: answer[name] for name in ("program", "proxy", "batch", "steps", "world", "train_s")}


def _train(session: BenchSession, batch: int, first: int) -> Iterator[Figure]:
    with session.jobs():
        job = session.submit_program(PROGRAM, *training_arguments(session, batch), gpus=1)
        answer = session.answer(job)
    program = answer["program"]
    yield session.figure(
        f"batch {batch}: {program}",
        answer["images_per_s"],
        "images/s",
        samples=answer["steps"],
        baseline=f"batch {first}: {program}",
        **training_detail(answer),
    )
