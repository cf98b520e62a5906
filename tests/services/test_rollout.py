"""Rolling updates: a simulated service under any order of readiness, requests and changes of the desired number."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool.domain.work.service import ReplicaStatus, Revision, ScalePolicy, Service, UpdatePolicy, promote
from gpupool.services.serving.rollout import RolloutSteps, plan

DRAIN_S = 10.0


def service(*, target: int = 1, current: int = 1, least: int = 1, surge: int = 1) -> Service:
    rows = tuple(Revision(number, 0.0, "ann", {}) for number in (1, 2))
    return Service(
        "s0", "chat", "default", "ann", 0.0, rows, current=current, target=target,
        scale=ScalePolicy(least, 8), update=UpdatePolicy(surge, DRAIN_S),
    )  # fmt: skip


def replica(number: int, revision: int = 1, *, ready: bool = True, **fields: object) -> ReplicaStatus:
    view = ReplicaStatus(f"w{number}", revision, float(number), ready=ready, started=True, served=ready)
    return replace(view, **fields)  # type: ignore[arg-type]


def test_missing_replicas_are_started_and_the_minimum_is_protected() -> None:
    assert plan(service(least=2), 3, []) == RolloutSteps(start=3, protected=2)
    assert plan(service(least=0), 2, []) == RolloutSteps(start=2, protected=1)
    assert plan(service(least=2), 3, [replica(1)]) == RolloutSteps(start=2, protected=1)


def test_surplus_replicas_that_lose_least_are_drained_first() -> None:
    rows = [replica(1), replica(2, protected=False), replica(3, ready=False), replica(4)]
    assert plan(service(), 3, rows).drain == ("w3",)
    assert plan(service(), 2, rows).drain == ("w3", "w2")
    assert plan(service(), 1, rows).drain == ("w3", "w2", "w4")


def test_draining_replica_is_stopped_without_requests_or_after_its_time() -> None:
    for fields, stopped in (
        ({"draining_s": 0.0, "requests": 0}, False),  # the gateway may not know yet
        ({"draining_s": 3.0, "requests": 0}, True),
        ({"draining_s": 3.0, "requests": 2}, False),
        ({"draining_s": 3.0, "requests": None}, False),
        ({"draining_s": DRAIN_S, "requests": 2}, True),
        ({"draining_s": 0.0, "served": False}, True),
    ):
        rows = [replica(1), replica(2, **fields)]
        assert plan(service(), 1, rows).stop == (("w2",) if stopped else ()), fields


def test_draining_replica_is_used_again_when_more_are_desired() -> None:
    rows = [replica(1), replica(2, draining_s=1.0)]
    assert plan(service(), 2, rows) == RolloutSteps(undrain=("w2",))


def test_update_without_surge_stops_a_replica_first() -> None:
    rows = [replica(1), replica(2)]
    assert plan(service(target=2, surge=0), 2, rows) == RolloutSteps(drain=("w2",))
    assert plan(service(target=2, surge=0), 2, [replica(1)]) == RolloutSteps(start=1, protected=1)
    assert plan(service(target=2, surge=0), 2, [replica(1), replica(3, 2, ready=False)]) == RolloutSteps()


def test_replica_on_a_drained_node_is_replaced_before_it_leaves() -> None:
    leaves, stays = replica(1, leaving=True), replica(2)
    assert plan(service(least=2), 2, [leaves, stays]) == RolloutSteps(start=1, protected=1)
    assert plan(service(least=2), 2, [leaves, stays, replica(3, ready=False)]) == RolloutSteps()
    assert plan(service(least=2), 2, [leaves, stays, replica(3)]) == RolloutSteps(drain=("w1",))
    left = replica(1, leaving=True, draining_s=1.0)
    assert plan(service(least=2), 2, [left, stays]) == RolloutSteps(start=1, protected=1)  # it is not used again
    assert plan(service(), 1, [leaves]) == RolloutSteps(start=1, protected=1)
    assert plan(service(), 0, [leaves]) == RolloutSteps(drain=("w1",))


def test_update_of_a_service_without_replicas_is_complete_at_once() -> None:
    assert plan(service(target=2), 0, []).complete
    assert not plan(service(target=2), 0, [replica(1, draining_s=1.0, requests=1)]).complete


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 4), st.integers(0, 2), st.integers(1, 4))
def test_update_completes_and_never_has_too_few_or_too_many_replicas(
    chance: random.Random, desired: int, surge: int, present: int
) -> None:
    row = service(target=2, surge=surge)
    rows = {f"w{n}": replica(n, requests=0) for n in range(present)}
    made = present
    usable = [each for each in rows.values() if each.draining_s is None and each.ready]
    fewest = min(desired, len(usable)) - (1 if surge == 0 else 0)
    for _ in range(200):
        steps = plan(row, desired, list(rows.values()))
        assert not set(steps.drain) & set(steps.stop)
        for gone in steps.stop:
            del rows[gone]
        for each in steps.drain:
            rows[each] = replace(rows[each], draining_s=0.0)
        for _number in range(steps.start):
            made += 1
            rows[f"w{made}"] = replica(made, 2, ready=False, requests=0)
        if steps.complete:
            row = promote(row)
        active = [each for each in rows.values() if each.draining_s is None]
        assert sum(each.ready for each in active) >= fewest
        assert len(rows) <= max(desired + surge, present)
        if not row.updating and not any(each.draining_s is not None for each in rows.values()):
            break
        for key, each in rows.items():
            changed = each
            if not each.ready and chance.random() < 0.3:
                changed = replace(changed, ready=True, served=True)
            if each.draining_s is not None:
                changed = replace(changed, draining_s=each.draining_s + 3)
            rows[key] = changed
    assert not row.updating
    assert len(rows) == desired
    assert {each.revision for each in rows.values()} == {2}


@given(st.integers(0, 5), st.integers(0, 5))
def test_plan_without_work_does_nothing(ready: int, surge: int) -> None:
    rows = [replica(n) for n in range(ready)]
    assert plan(service(surge=surge), ready, rows) == RolloutSteps()
