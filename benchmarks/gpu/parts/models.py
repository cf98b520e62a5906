"""Training of ResNet-50 and a small transformer: without gpupool, on a whole GPU, in a 1.0 slice, in two 0.5 slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench import NATIVE, WHOLE, Bench, Place, Work, part

from gpupool.bench.figures import Figure, measured
from parts.trying import tried

TITLE = "Training, samples per second"
MODELS = ("resnet50", "transformer")
BATCHES = (1, 256)
SECONDS = 20.0
ALONE = ((NATIVE, ""), (WHOLE, "at least 99 % of native"), (part(1.0), "at least 99 % of whole"))


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure samples per second; for two tenants the sum, compared with two programs without gpupool."""
    for model in MODELS:
        for batch in BATCHES:
            for place, goal in ALONE:
                yield _figure(bench, model, batch, [place], goal)
            yield _figure(bench, model, batch, [NATIVE, NATIVE], "")
            yield _figure(bench, model, batch, [part(0.5), part(0.5)], "at least 97 % of two native")


def _figure(bench: Bench, model: str, batch: int, places: Sequence[Place], goal: str) -> Figure:
    where = places[0].label if len(places) == 1 else f"two at once, {places[0].label}"
    name = f"{model}, batch {batch}, {where}"
    return tried(TITLE, name, lambda: _speed(bench, name, model, batch, places, goal))


def _speed(bench: Bench, name: str, model: str, batch: int, places: Sequence[Place], goal: str) -> Figure:
    asked = ("--model", model, "--batch", str(batch), "--seconds", str(bench.seconds(SECONDS)))
    found = bench.together([Work(place, "models.py", asked) for place in places])
    speed = sum(one["samples"] / one["seconds"] for one in found)
    steps = min(int(one["steps"]) for one in found)
    return measured(TITLE, name, speed, "samples/s", samples=steps, goal=goal, runs=found)
