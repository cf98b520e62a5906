"""The waiting shapes that have a place now: the answer for all of them together is the answer for each."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scheduling_world import NOW, node, pendings, world

from gpupool.scheduling.placement.fit_table import fitting, largest
from gpupool.scheduling.placement.node_filter import accepted_models, usable_rows, usable_slots
from gpupool.scheduling.scheduler import NodeChanged, PendingAdded, PendingRemoved, Scheduler
from gpupool.scheduling.state.allocation import Claim
from gpupool.scheduling.state.cluster import Shape

WORDS = ["model=t4", "model=a100", "model=3g.40gb", "zone=x", "pool=red", "sharing=mps", "sharing=share", "train"]
NODE_WORDS = ["cordoned", "failed=0", "foreign=0", "zone=x", "pool=red", "policy=mps", "mig=3g.40gb,4g.40gb"]


def waiting(r: random.Random, number: int) -> str:
    """Return a waiting replica in words; see ``scheduling_world``."""
    request = r.choice(["0", "1", "2", "0.5", "2x0.3", f"0.{r.randint(10, 99)}", f"{r.randint(1, 90) * 1000}M"])
    host = f"cpus={r.choice([0, 1, r.randint(1, 20)])} mem={r.choice([0, 100, r.randint(1, 40_000)])}"
    words = " ".join(r.sample(WORDS, r.choice([0, 0, 0, 1, 2])) + r.choice([[], ["max=60"]]))
    who = f"{r.choice(['red', 'blue'])}/{r.choice(['ann', 'bob'])}"
    return f"p{number} {who} {request} {host} {words} wait={r.choice([20, 80])}"


def machine(r: random.Random, name: str) -> str:
    """Return a node in words."""
    words = " ".join(r.sample(NODE_WORDS, r.choice([0, 0, 1, 2])))
    host = f"cpus={r.choice([2, 8, 32])} mem={r.choice([2000, 32_000])}"
    return f"{name} {r.randint(1, 4)}x{r.choice(['T4', 'A100', 'L4'])} {host} {words}"


def fits_alone(scheduler: Scheduler, shape: Shape) -> bool:
    """Return whether a shape has a place now, found without any cache."""
    c = scheduler.cluster
    rows = np.flatnonzero(c.present)
    ok, _ = usable_slots(c, shape, rows, accepted_models(c, shape))
    return bool(usable_rows(c, shape, rows, ok).any())


def change_amounts(scheduler: Scheduler, r: random.Random) -> None:
    """Change the free part and the free memory of a node's GPUs to what a shape needs there, or to a little less."""
    c = scheduler.cluster
    row = r.choice(list(c.rows.values()))
    need, memory = r.choice(list(scheduler.demand.shape_projects)).needs(c.gmem_total[row])
    for column, amount in ((c.gpu_free, need), (c.gmem_free, memory)):
        c.log.add(column, row, amount - r.choice([0, 0, 1]) - column[row])
    c.log.touch(row)
    c.touch(row)


def check(scheduler: Scheduler, r: random.Random) -> None:
    """Compare what is known about all shapes, and about some, with a search for each."""
    demand, placer = scheduler.demand, scheduler.placer
    shapes = demand.first_groups().shapes
    among = shapes.live & np.array([r.random() < 0.8 for _ in shapes.live])
    assert set(shapes.named(demand.starved_shapes())) == demand.starved.keys()
    for asked in (among, shapes.live):
        found, least = fitting(scheduler.cluster, shapes, asked), placer.least_of(shapes)
        assert set(shapes.named(shapes.live)) == demand.shape_projects.keys()
        for shape in shapes.named(asked):
            number = shapes.number(shape)
            assert found[number] == fits_alone(scheduler, shape) == placer.fits_anywhere(shape), shape
            assert least[number] == placer.least_permille(shape), shape
        assert not found[~asked].any()


def change(scheduler: Scheduler, r: random.Random, charged: list[Claim]) -> None:
    """Change the cluster or the queue in one way."""
    cluster, placer, demand = scheduler.cluster, scheduler.placer, scheduler.demand
    step = r.choice(["charge", "charge", "amounts", "free", "time", "undo", "submit", "cancel", "node"])
    if step in ("undo", "node"):
        cluster.log.rollback(0)
        charged.clear()
    if step == "charge":
        shapes = [shape for shape in demand.shape_projects if placer.fits_anywhere(shape)]
        if shapes and (claim := placer.find(r.choice(shapes))) is not None:
            cluster.charge(claim)
            charged.append(claim)
    elif step == "amounts":
        change_amounts(scheduler, r)
    elif step == "free" and charged:
        cluster.discharge(charged.pop(r.randrange(len(charged))))
    elif step == "time":
        cluster.pass_time(NOW + r.choice([0, 50, 150]))
        demand.mature(NOW - r.choice([0, 50, 150]))
    elif step == "submit":
        number = r.randrange(10**9)
        scheduler.apply_all(PendingAdded(p, NOW) for p in pendings(waiting(r, number), number))
    elif step == "cancel":
        scheduler.apply(PendingRemoved(r.choice(list(demand.pending))))
    elif step == "node":
        scheduler.apply(NodeChanged(node(machine(r, f"n{r.randint(0, 7)}"))))


@pytest.mark.parametrize("seed", range(60))
def test_fitting_shapes_are_those_that_fit_alone(seed: int) -> None:
    r = random.Random(seed)
    booking = f"m1 on=n0 from={r.choice([0, 100])} for=3600 projects=red" if r.random() < 0.7 else ""
    nodes = "; ".join(machine(r, f"n{number}") for number in range(r.randint(1, 3)))
    scheduler = world(nodes, "; ".join(waiting(r, n) for n in range(30)), reservations=booking).scheduler
    cluster, charged = scheduler.cluster, list[Claim]()
    cluster.gmem_total -= 7 * (cluster.gmem_total > 0)  # so that parts of it are no whole numbers
    cluster.pass_time(NOW)
    try:
        for _ in range(12):
            change(scheduler, r, charged)
            check(scheduler, r)
    finally:
        cluster.log.rollback(0)


def test_largest_rows_exceed_all_others() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        room = rng.integers(0, 6, (int(rng.integers(0, 40)), 3))
        kept = room[largest(list(room.T))]
        assert all((kept >= row).all(axis=1).any() for row in room)
        if len(room) > 4:  # fewer are not compared
            assert all(((kept >= row).all(axis=1)).sum() == 1 for row in kept)
