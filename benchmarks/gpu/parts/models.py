"""Training of ResNet-50 and a small transformer: without gpupool, on a whole GPU, in a 1.0 slice, in two 0.5 slices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bench import NATIVE, WHOLE, Bench, Place, Work, part

from gpupool.bench.figures import Figure, measured
from parts.tasks import Task

TITLE = "Training, samples per second"
PART = "models"
BATCHES = (256, 1)
SECONDS = 12.0
TASK_SECONDS = 40
PLACES: dict[str, tuple[tuple[Place, ...], str]] = {
    "native": ((NATIVE,), ""),
    "1.0 slice": ((part(1.0),), "at least 99 % of whole"),
    "whole": ((WHOLE,), "at least 99 % of native"),
    "two at once, native": ((NATIVE, NATIVE), ""),
    "two at once, 0.5 slice": ((part(0.5), part(0.5)), "at least 97 % of two native"),
}


def tasks() -> list[Task]:
    """Return samples per second; for two tenants the sum. `synchronised` waits for the GPU after each step."""
    return [
        _task(model, batch, sync, place)
        for sync in (False, True)
        for model in ("resnet50", "transformer")
        for batch in BATCHES
        for place in PLACES
    ]


def _task(model: str, batch: int, sync: bool, place: str) -> Task:
    name = f"{model}, batch {batch}, {place}" + (", synchronised" if sync else "")
    tier = 3 if sync else 1 if (model, batch) == ("resnet50", BATCHES[0]) else 2
    measure = partial(_speed, name=name, words=("--model", model, "--batch", str(batch)), sync=sync, place=place)
    return Task(PART, name, TASK_SECONDS, measure, tier)


def _speed(bench: Bench, name: str, words: Sequence[str], sync: bool, place: str) -> Figure:
    bench.need_real_gpu()
    places, goal = PLACES[place]
    asked = (*words, "--seconds", str(bench.seconds(SECONDS)), *(("--sync",) if sync else ()))
    found = bench.together([Work(one, "models.py", asked) for one in places])
    speed = sum(one["samples"] / one["seconds"] for one in found)
    steps = min(int(one["steps"]) for one in found)
    return measured(PART, name, speed, "samples/s", samples=steps, goal=goal, runs=found)
