"""The fragmentation gradient against its definition in plain Python, and the learned typical work."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool.domain.nodes.gpu import GpuRequest, Placement
from gpupool.domain.nodes.sharing import Sharing
from gpupool.scheduling.placement.demand_profile import (
    COVER,
    DEFAULT_KINDS,
    LEARN_LAST,
    ProfiledRequest,
    TypicalWork,
    frequent_kinds,
)
from gpupool.scheduling.placement.fragmentation import UNMET, Fragmentation, GpuClass, need_on
from gpupool.scheduling.placement.scoring import prices

CLASSES: tuple[GpuClass, ...] = (("", 0), ("T4", 16_000), ("A100", 80_000), ("A100 MIG 3g.40gb", 40_000))
REQUESTS = (
    GpuRequest(1),
    GpuRequest(2),
    GpuRequest(4),
    GpuRequest(2, 500),
    GpuRequest(1, 300),
    GpuRequest(1, 1000, 8_000),
    GpuRequest(1, 1000, 60_000),
    GpuRequest(1, 500, None, ("t4",)),
    GpuRequest(2, 1000, None, ("a100",)),
    GpuRequest(1, 1000, None, ("3g.40gb",)),
)


@st.composite
def kinds(draw: st.DrawFn) -> list[ProfiledRequest]:
    chosen = draw(st.lists(st.tuples(st.sampled_from(REQUESTS), st.integers(0, 5), st.integers(1, 9)), min_size=1))
    total = sum(weight for _, _, weight in chosen)
    return [ProfiledRequest(request, cpu * 1000, weight / total) for request, cpu, weight in chosen]


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Return the classes of each node's GPUs, the free share of each, and its free CPU."""
    gpus = draw(st.lists(st.integers(0, len(CLASSES) - 1), min_size=4, max_size=4))
    if draw(st.booleans()):
        gpus = gpus[:1] * 4
    free = [draw(st.sampled_from([0, 1, 200, 300, 500, 750, 999, 1000])) if number else 0 for number in gpus]
    return gpus, free, draw(st.integers(0, 6)) * 1000


def fragmentation(kinds_: list[ProfiledRequest], gpus: list[int], free: list[int], cpu: int) -> float:
    """Compute the definition for one kind after the other."""
    found = 0.0
    for kind in kinds_:
        fits = [f for f, number in zip(free, gpus, strict=True) if need_on(kind, CLASSES[number]) <= f]
        usable = sum(fits) if len(fits) >= kind.request.count and cpu >= kind.cpu_milli else 0
        found += kind.part * (sum(free) - usable)
    return found


@settings(max_examples=80, deadline=None)
@given(kinds(), st.lists(nodes(), min_size=1, max_size=3), st.sampled_from([100, 300, 1000]), st.integers(0, 3))
def test_gradient_equals_definition(
    kinds_: list[ProfiledRequest], some: list[tuple[list[int], list[int], int]], need: int, cpus: int
) -> None:
    measure = Fragmentation(kinds_, CLASSES)
    classes, free = np.array([n[0] for n in some]), np.array([n[1] for n in some])
    cpu = np.array([n[2] for n in some])
    left = cpu - cpus * 1000
    before = [fragmentation(kinds_, *n) for n in some]
    assert measure.of(classes, cpu, free) == pytest.approx(before)
    by_gpu = measure.growth_by_gpu(classes, cpu, left, free, np.full_like(free, need))
    for row, (gpus, there, _) in enumerate(some):
        for slot in [slot for slot in range(4) if there[slot] >= need]:
            after = [f - need * (slot == at) for at, f in enumerate(there)]
            expected = fragmentation(kinds_, gpus, after, int(left[row])) - before[row]
            assert by_gpu[row, slot] == pytest.approx(expected, abs=1e-6)
    emptied = np.where(free >= need, free - need, free)
    expected_rows = [fragmentation(kinds_, n[0], emptied[row].tolist(), int(left[row])) for row, n in enumerate(some)]
    growth = measure.growth(classes, cpu, left, free, emptied)
    assert growth == pytest.approx([after - b for after, b in zip(expected_rows, before, strict=True)], abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(kinds(), st.integers(0, len(CLASSES) - 1), st.lists(st.sampled_from([0, 300, 1000]), min_size=4, max_size=4))
def test_one_class_per_node_equals_one_class_per_gpu(
    kinds_: list[ProfiledRequest], number: int, free: list[int]
) -> None:
    measure, cpu, there = Fragmentation(kinds_, CLASSES), np.array([3000]), np.array([free]) * (number > 0)
    short, long = np.array([[number]]), np.full((1, 4), number)
    assert measure.of(short, cpu, there) == pytest.approx(measure.of(long, cpu, there))
    need = np.full((1, 4), 300)
    assert measure.growth_by_gpu(short, cpu, cpu, there, need) == pytest.approx(
        measure.growth_by_gpu(long, cpu, cpu, there, need)
    )


@pytest.mark.parametrize(
    ("request_", "gpu", "need"),
    [
        (GpuRequest(1), ("T4", 16_000), 1000),
        (GpuRequest(1, 300), ("T4", 16_000), 300),
        (GpuRequest(1, 1000, 8_000), ("T4", 16_000), 500),
        (GpuRequest(1, 1000, 8_000), ("A100", 80_000), 100),
        (GpuRequest(1, 1000, 20_000), ("T4", 16_000), UNMET),
        (GpuRequest(1, 1000, None, ("a100",)), ("T4", 16_000), UNMET),
        (GpuRequest(1), ("A100 MIG 3g.40gb", 40_000), UNMET),
        (GpuRequest(1, 1000, None, ("mig",)), ("A100 MIG 3g.40gb", 40_000), 1000),
        (GpuRequest(1), ("", 0), UNMET),
    ],
)
def test_share_that_a_request_needs_of_a_gpu(request_: GpuRequest, gpu: GpuClass, need: int) -> None:
    assert need_on(ProfiledRequest(request_, 0, 1.0), gpu) == need


# --- learned requests


def test_default_kinds_are_used_before_submissions() -> None:
    known = TypicalWork().known()
    assert {kind.request for kind in known} == {request for request, _ in DEFAULT_KINDS}
    assert sum(kind.part for kind in known) == pytest.approx(1)
    assert known[0].request == GpuRequest(1)


def test_frequent_requests_are_first_and_old_ones_decay() -> None:
    work = TypicalWork()
    for request, times in ((GpuRequest(2), 5_000), (GpuRequest(1, 300), 20_000)):
        for _ in range(times):
            work.submitted(request, 4000)
    known = {(kind.request, kind.cpu_milli): kind.part for kind in work.known()}
    assert work.known()[0] == ProfiledRequest(GpuRequest(1, 300), 4000, known[GpuRequest(1, 300), 4000])
    assert known[GpuRequest(2), 4000] < 0.03  # a fifth of all submissions, and long ago


def test_labels_mode_and_placement_do_not_distinguish_kinds() -> None:
    work = TypicalWork()
    for request in (
        GpuRequest(1, 300),
        GpuRequest(1, 300, sharing=Sharing.MPS),
        GpuRequest(1, 300, labels=(("rack", "x"),)),
        GpuRequest(1, 300, placement=Placement.SPREAD),
    ):
        work.submitted(request, 0)
    assert sum(kind.request.permille == 300 for kind in work.known()) == 1


def test_learned_kinds_do_not_depend_on_order_of_equal_submissions() -> None:
    lists = [TypicalWork(), TypicalWork()]
    for work, order in zip(lists, (REQUESTS, REQUESTS), strict=True):
        for request in order:
            work.submitted(request, 1000)
    assert lists[0].known() == lists[1].known()


def test_kinds_are_learned_rarely() -> None:
    work = TypicalWork()
    versions = set()
    for _ in range(10_000):
        work.submitted(GpuRequest(1), 0)
        versions.add(work.learn())
    assert 10 <= len(versions) <= 30
    quiet = work.learn()
    for _ in range(LEARN_LAST - 1):
        work.submitted(GpuRequest(1), 0)
    assert work.learn() == quiet or work.learn() == quiet + 1


def test_learned_kinds_cover_most_work_and_sum_to_one() -> None:
    rng, work = random.Random(1), TypicalWork()
    for _ in range(3_000):
        work.submitted(GpuRequest(1, 10 * (1 + int(rng.expovariate(0.2)) % 100)), 0)
    known = work.known()
    chosen = frequent_kinds(known)
    assert sum(kind.part for kind in chosen) == pytest.approx(1)
    assert sum(kind.part for kind in known[: len(chosen)]) >= COVER or len(chosen) == len(known)


def test_number_of_remembered_kinds_is_bounded() -> None:
    work = TypicalWork()
    for number in range(30_000):
        work.submitted(GpuRequest(1), number)
    assert len(work.known()) <= 4_096
    assert work.known()[0].cpu_milli > 0


# --- demand for models


def test_requested_model_has_higher_price() -> None:
    known = (ProfiledRequest(GpuRequest(1), 0, 0.8), ProfiledRequest(GpuRequest(1, 1000, None, ("a100",)), 0, 0.2))
    found = prices(known, CLASSES[:3], (0, 80, 20))
    assert found[2] > found[1] > 0 == found[0]


def test_models_have_equal_price_without_model_requests() -> None:
    found = prices((ProfiledRequest(GpuRequest(1), 0, 1.0),), CLASSES[:3], (0, 80, 20))
    assert found[1] == found[2] == pytest.approx(1)


def test_prices_do_not_depend_on_total_submissions() -> None:
    kinds_ = [ProfiledRequest(GpuRequest(1), 0, 0.5), ProfiledRequest(GpuRequest(1, 1000, None, ("t4",)), 0, 0.5)]
    half = [replace(kind, part=kind.part / 2) for kind in kinds_]
    assert prices(kinds_, CLASSES[:3], (0, 8, 2)) == pytest.approx(prices(half, CLASSES[:3], (0, 8, 2)))
