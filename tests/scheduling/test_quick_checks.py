"""Quick checks, done for many replicas at once, decide like the slow ones: over random histories of small pools."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import pytest
from scheduling_world import World, world
from test_shared_failures import Pool, full_pool

from gpupool.scheduling.eviction import consolidation
from gpupool.scheduling.eviction.preemption import Preemption
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Claim
from gpupool.scheduling.state.ledger import Account

SEEDS, CYCLES = 80, 6
IN_CLUSTER = "gpu_free", "gmem_free", "guests", "cpu_free", "mem_free"
IN_LEDGER = "used", "dept_used", "user_used", "pair_used"


def varied(pool: Pool, r: random.Random) -> Pool:
    """Return a pool with other CPU and memory requests, and more waiting work."""
    pending = [
        f"{line} cpus={r.choice([0, 1, 2, r.randint(1, 9)])} mem={r.choice([0, 100, r.randint(1, 9000)])}"
        for line in pool.pending.split("; ")
    ]
    pending += [
        f"q{number} {r.choice(['red', 'blue', 'green', 'tan'])}/{r.choice(['ann', 'bob', 'eve'])} "
        f"{r.choice(['1', '1', '0.5', '0.25', '2', '4000M', '0'])} train cpus={r.randint(1, 9)} "
        f"mem={r.randint(1, 9000)} wait={r.choice([0, 100, 5000])}"
        for number in range(r.randint(0, 12))
    ]
    nodes = [f"{line} cpus={r.choice([8, 16, 64])} mem={r.choice([8000, 64000])}" for line in pool.nodes.split("; ")]
    return replace(pool, nodes="; ".join(nodes), pending="; ".join(pending))


def in_pieces(r: random.Random) -> Pool:
    """Return a pool whose free space is in pieces, so that moves help."""
    counts, limit = [r.randint(2, 4) for _ in range(r.randint(2, 3))], r.choice(["", "", "", " limit=3"])
    running = [
        f"r{node}{slot} {r.choice(['red', 'blue'])} {r.choice(['0.3', '0.5', '0.6', '2000M'])} on n{node}:{slot} "
        f"age=9000 prio={r.choice([0, 0, 5])}{r.choice([' train', ' train', ' train', ''])}"
        for node, count in enumerate(counts)
        for slot in range(count)
        if r.random() < 0.9
    ]
    pending = "; ".join(f"p{n} {r.choice(['red', 'blue'])} 1 wait=100" for n in range(r.randint(1, 3)))
    nodes = "; ".join(f"n{number} {count}xT4" for number, count in enumerate(counts))
    return Pool(nodes, pending, "; ".join(running), f"red{limit}; blue")


def history(seed: int, before: Callable[[World], None] = lambda _: None) -> list[tuple[object, ...]]:
    """Return the decisions of some cycles on a random pool; ``before`` is called before each."""
    r = random.Random(seed)
    pool = varied(in_pieces(r) if seed % 3 == 0 else full_pool(seed), r)
    options = {"turn_s": pool.turn_s} if pool.turn_s else {}
    w, decided = world(pool.nodes, pool.pending, pool.running, pool.projects, pool.users, **options), []
    w.slow = r.choice([0, 1, 2])
    for _ in range(CYCLES):
        before(w)
        w.step()
        evictions = sorted((str(e.workload), e.index, e.reason) for e in w.last.evictions)
        holds = sorted(map(str, w.last.holds))
        decided.append((sorted(map(str, w.last.grants)), evictions, holds, w.last.exhausted, w.last.more))
        w.now += r.choice([0.3, 1, 3, 30])
    return decided


def each_charged(self: SchedulingSession, charges: Iterable[tuple[Claim, Account]]) -> None:
    """Charge one claim after another."""
    for claim, account in charges:
        self.charge(claim, account)


def each_discharged(self: SchedulingSession) -> None:
    """Remove one claim after another."""
    for key in self.outcome.leaving:
        self.discharge_running(key)


def amounts(session: SchedulingSession) -> dict[str, list[int]]:
    """Return all amounts that a claim changes."""
    found = {name: getattr(session.cluster, name).tolist() for name in IN_CLUSTER}
    return found | {name: getattr(session.ledger, name).tolist() for name in IN_LEDGER}


def every_taker(self: Preemption) -> set[int]:
    """Return all users, so that each of them is searched for."""
    return set(range(len(self._room.session.ledger.pair_project)))


@pytest.mark.parametrize(
    ("where", "name", "slow"),
    [
        (consolidation._Look, "clearable", lambda _look, _shape, rows, _priority: rows.tolist()),
        (Preemption, "_possible_takers", property(every_taker)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_decisions_are_those_of_slow_checks(where: Any, name: str, slow: Any) -> None:
    for seed in range(SEEDS):
        decided = history(seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, name, slow)
            assert history(seed) == decided, seed


@pytest.mark.parametrize(("name", "slow"), [("charge_all", each_charged), ("discharge_leaving", each_discharged)])
def test_claims_counted_at_once_change_all_amounts_as_one_by_one(name: str, slow: Callable[..., None]) -> None:
    at_once, compared = getattr(SchedulingSession, name), Counter[str]()

    def both(self: SchedulingSession, *arguments: Iterable[Any]) -> None:
        lists, mark = [list(argument) for argument in arguments], self.log.checkpoint()
        before = amounts(self)
        slow(self, *lists)
        expected = amounts(self)
        self.log.rollback(mark)
        at_once(self, *lists)
        assert amounts(self) == expected
        compared.update(column for column in expected if expected[column] != before[column])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SchedulingSession, name, both)
        for seed in range(3 * SEEDS):
            history(seed)
    assert compared.keys() == {*IN_CLUSTER, *IN_LEDGER}, "no history changes the others"


def test_decisions_do_not_depend_on_when_the_running_table_is_updated() -> None:
    def update(w: World) -> None:
        w.scheduler.demand.holders.catch_up(w.scheduler.cluster)

    for seed in range(3 * SEEDS):
        assert history(seed, update) == history(seed), seed


def test_sessions_do_not_wait_for_the_garbage_collector() -> None:
    sessions = WeakSet[SchedulingSession]()
    made = SchedulingSession.__init__

    def noted(self: SchedulingSession, *arguments: Any) -> None:
        sessions.add(self)
        made(self, *arguments)

    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SchedulingSession, "__init__", noted)
            for seed in range(SEEDS):
                history(seed)
                assert not sessions, seed
    finally:
        gc.enable()
