"""Holds whose victims still end: most are skipped by a quick check, which must not change results."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.nodes.sharing import Sharing
from gpupool.domain.people.access import Project
from gpupool.scheduling.holds import settlement
from gpupool.scheduling.policy import Settings
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.values import ReplicaKey
from gpupool.simulate.clusters import parse_cluster
from gpupool.simulate.engine import Simulation
from gpupool.simulate.values import Record, Rules, TraceJob

PARTS = [GpuRequest(1, 250, sharing=sharing) for sharing in (None, Sharing.MPS, Sharing.ADVISORY)]
REQUESTS = [GpuRequest(1), GpuRequest(1, 500), *PARTS, GpuRequest(2), GpuRequest(4)]
CLUSTER = "2x4xT4,1x2xA100"
CHECK = settlement._still_waiting


def jobs(seed: int, count: int) -> list[TraceJob]:
    rng = random.Random(seed)
    made, at = [], 0.0
    for _ in range(count):
        at += rng.choice([0, 1, 20, 90])
        made.append(
            TraceJob(
                at,
                rng.choice([30.0, 200.0, 900.0]),
                rng.choice(REQUESTS),
                rng.choice(["red", "blue", "green"]),
                rng.choice(["ann", "bob"]),
                preemptible=rng.random() < 0.8,
                cpus=rng.choice([0, 1, 8]),
                memory_mib=rng.choice([0, 4000]),
                members=rng.choice([1, 1, 1, 1, 2]),
                priority=rng.choice([0, 0, 0, 5]),
            )
        )
    return made


def run(seed: int, count: int, limit: int | None) -> Record:
    projects = [Project("red", 4000), Project("blue", 2000, limit_permille=limit), Project("green", 0)]
    rules, pool = Rules(grace_s=60.0), parse_cluster(CLUSTER)
    return Simulation(jobs(seed, count), pool, projects, rules, Settings(reserve_after_s=120.0)).run()


def counted(counts: Counter[str]) -> Callable[..., set[ReplicaKey]]:
    def quick_check(session: SchedulingSession, keys: list[ReplicaKey], *words: Any) -> set[ReplicaKey]:
        waiting = CHECK(session, keys, *words)
        counts.update(asked=len(keys), waiting=len(waiting))
        return waiting

    return quick_check


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([None, 3000]))
def test_quick_check_decides_as_full_trial(seed: int, limit: int | None) -> None:
    quick = run(seed, 24, limit)
    with patch.object(settlement, "_still_waiting", lambda *_: set()):
        tried = run(seed, 24, limit)
    assert quick.fates == tried.fates
    assert quick.evictions == tried.evictions


def test_quick_check_avoids_most_trials() -> None:
    counts = Counter[str]()
    with patch.object(settlement, "_still_waiting", counted(counts)):
        run(7, 80, None)
    assert counts["asked"] > 20
    assert counts["waiting"] > counts["asked"] / 2
