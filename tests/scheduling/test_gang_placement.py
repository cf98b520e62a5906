"""Placement of gangs: a place is found whenever there is one, as near together as required, and undone exactly."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_world import NOW, World, pending, request, world

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuRequest
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.explain.feasibility import check_gang_possible
from gpupool.scheduling.gang_placement import place
from gpupool.scheduling.session import SchedulingSession
from gpupool.scheduling.state.allocation import Claim

CPUS_PER_NODE = 4
REQUESTS = ("1", "2", "0.5", "0.3", "2x0.5", "2x0.3", "3x0.4", "6000M")

used_gpus = st.sampled_from((0, 0, 0, 200, 400, 500, 600, 700, 1000))
nodes_ = st.lists(
    st.tuples(st.lists(used_gpus, min_size=1, max_size=4), st.sampled_from(("x", "y", ""))), min_size=1, max_size=3
)


def made(nodes: list[tuple[list[int], str]]) -> World:
    """Return nodes a, b, c; each given part is in use on one of their GPUs."""
    names = "abc"[: len(nodes)]
    lines = [
        f"{name} {len(gpus)}xT4 cpus={CPUS_PER_NODE}" + (f" zone={zone}" if zone else "")
        for name, (gpus, zone) in zip(names, nodes, strict=True)
    ]
    held = [
        f"r{name}{slot} blue {part / 1000:g} on {name}:{slot}"
        if part < 1000
        else f"r{name}{slot} blue 1 on {name}:{slot}"
        for name, (gpus, _) in zip(names, nodes, strict=True)
        for slot, part in enumerate(gpus)
        if part
    ]
    return world("; ".join(lines), running_="; ".join(held))


def most_on(free: tuple[int, ...], count: int, need: int) -> int:
    """Return the maximum number of replicas of ``count`` GPUs with ``need`` thousandths each, by exhaustive search."""

    @cache
    def best(left: tuple[int, ...]) -> int:
        found = 0
        for slots in combinations(range(len(left)), count):
            if all(left[slot] >= need for slot in slots):
                after = tuple(sorted(f - need * (slot in slots) for slot, f in enumerate(left)))
                found = max(found, 1 + best(after))
        return found

    return best(tuple(sorted(free)))


def most_together(nodes: list[tuple[list[int], str]], wanted: GpuRequest, cpus: int, gang: Gang) -> int:
    """Return the maximum number of members; in one zone if the gang is strict."""
    need = wanted.permille_on(16_000)
    rooms: dict[str, int] = {}
    for gpus, zone in nodes:
        if gang.strict and not zone:
            continue
        room = most_on(tuple(1000 - part for part in gpus), wanted.count, need)
        if cpus:
            room = min(room, CPUS_PER_NODE // cpus)
        key = zone if gang.strict else ""
        rooms[key] = rooms.get(key, 0) + room
    return min(gang.most, max(rooms.values(), default=0))


def placed(w: World, wanted: str, gang: Gang, cpus: int = 0) -> tuple[list[Claim] | None, SchedulingSession]:
    s = w.scheduler
    first = pending(f"g red {wanted} cpus={cpus}")
    members = [replace(first, index=index, gang=gang) for index in range(gang.most)]
    shape, account = s.demand.shape_of(first), s.demand.account_of(first)
    session = SchedulingSession(s.placer, s.demand, NOW, s.settings)
    return place(session, members, shape, account, gang.least), session


@settings(max_examples=300, deadline=None)
@given(
    nodes_,
    st.sampled_from(REQUESTS),
    st.tuples(st.integers(1, 5), st.integers(0, 3)),
    st.sampled_from((("", False), ("zone", False), ("zone", True), ("node", True))),
    st.sampled_from((0, 0, 1, 3)),
)
def test_placement_finds_the_maximum_number_of_members(
    nodes: list[tuple[list[int], str]], wanted: str, sizes: tuple[int, int], near: tuple[str, bool], cpus: int
) -> None:
    gang = Gang(sizes[0], sizes[0] + sizes[1], *near)
    if near[0] == "node":
        nodes = [(gpus, str(number)) for number, (gpus, _) in enumerate(nodes)]
        w = made([(gpus, "") for gpus, _ in nodes])
    else:
        w = made(nodes)
    cluster = w.scheduler.cluster
    before = {name: column.copy() for name, column in vars(cluster).items() if isinstance(column, np.ndarray)}
    claims, session = placed(w, wanted, gang, cpus)
    possible = most_together(nodes, request(wanted, {}), cpus, gang)
    assert len(claims or []) == (possible if possible >= gang.least else 0)
    if claims is not None:
        assert all((cluster.gpu_free[claim.row][claim.gpu > 0] >= 0).all() for claim in claims)
        assert all((cluster.cpu_free[claim.row] >= 0) or not cpus for claim in claims)
        if gang.strict and near[0] == "zone":
            assert len({nodes["abc".index(cluster.name_of(claim.row))][1] for claim in claims}) == 1
    session.close()
    for name, column in before.items():
        if name != "touched":
            assert (getattr(cluster, name) == column).all(), name


def where(nodes: str, wanted: str, gang: Gang, running: str = "", cpus: int = 0) -> str:
    w = world(nodes, running_=running)
    claims, session = placed(w, wanted, gang, cpus)
    names = [w.scheduler.cluster.name_of(claim.row) for claim in claims or []]
    session.close()
    return " ".join(names)


@pytest.mark.parametrize(
    ("nodes", "wanted", "gang", "expect"),
    [
        ("a 4xT4; b 2xT4", "1", Gang(2, 2), "b b"),
        ("a 4xT4; b 2xT4", "1", Gang(3, 3), "a a a"),
        ("a 4xT4; b 2xT4", "1", Gang(5, 5), "a a a a b"),
        ("a 4xT4; b 4xT4; c 1xT4", "1", Gang(5, 5), "a a a a c"),
        ("a 1xT4; b 1xT4; c 1xT4; d 2xT4", "1", Gang(3, 3), "d d a"),
        ("a 2xT4 zone=x; b 2xT4 zone=y; c 4xT4 zone=x", "1", Gang(5, 5, "zone"), "c c c c a"),
        ("a 2xT4 zone=x; b 2xT4 zone=y; c 2xT4 zone=y", "1", Gang(4, 4, "zone", strict=True), "b b c c"),
        ("a 2xT4 zone=x; b 2xT4 zone=x; c 3xT4 zone=y; d 3xT4 zone=y", "1", Gang(4, 4, "zone"), "a a b b"),
        ("a 2xT4 zone=x; b 2xT4 zone=y", "1", Gang(3, 3, "zone", strict=True), ""),
        ("a 2xT4 zone=x; b 2xT4 zone=y", "1", Gang(3, 3, "zone"), "a a b"),
        ("a 2xT4; b 2xT4", "1", Gang(2, 2, "zone", strict=True), ""),
        ("a 2xT4 zone=x; b 3xT4 zone=y", "1", Gang(2, 4, "zone", strict=True), "b b b"),
        ("a 2xT4 zone=x; b 3xT4 zone=y", "1", Gang(2, 4, "zone"), "b b b a"),
        ("a 2xT4; b 3xT4", "1", Gang(2, 4, "node", strict=True), "b b b"),
        ("a 8xT4; b 8xT4", "4", Gang(3, 3), "a a b"),
        ("a 1xT4; b 2xT4", "0.5", Gang(2, 2), "a a"),
    ],
)
def test_members_are_placed_on_expected_nodes(nodes: str, wanted: str, gang: Gang, expect: str) -> None:
    assert where(nodes, wanted, gang) == expect


def test_fullest_sufficient_zone_is_chosen() -> None:
    nodes = "a 4xT4 zone=x; b 4xT4 zone=x; c 4xT4 zone=y; d 4xT4 zone=y"
    held = "r1 blue 3 on c:012"
    assert where(nodes, "1", Gang(5, 5, "zone", strict=True), held) == "d d d d c"
    assert where(nodes, "1", Gang(6, 6, "zone", strict=True), held) in {"a a a a b b", "b b b b a a"}


def test_members_split_nvlink_pairs_only_if_necessary() -> None:
    w = world("a 4xA100 nvlink", running_="r1 blue 1 on a:1")
    claims, session = placed(w, "2", Gang(1, 1))
    assert claims is not None
    assert np.flatnonzero(claims[0].gpu).tolist() == [2, 3]
    session.close()


def test_large_gang_is_placed_node_by_node() -> None:
    w = world("; ".join(f"n{i} 8xT4" for i in range(150)))
    claims, session = placed(w, "8", Gang(100, 100))
    assert claims is not None
    assert len({claim.row for claim in claims}) == 100
    session.close()


@pytest.mark.parametrize(
    ("gang", "possible"),
    [
        (Gang(6, 9), True),
        (Gang(7, 7), False),
        (Gang(4, 4, "zone", strict=True), True),
        (Gang(5, 5, "zone", strict=True), False),
        (Gang(2, 2, "rack", strict=True), False),
        (Gang(2, 2, "rack"), True),
    ],
)
def test_gang_that_can_never_start_is_detected(gang: Gang, possible: bool) -> None:
    w = world("a 2xT4 zone=x; b 2xT4 zone=x down; c 2xT4 zone=y", running_="r1 blue 2 on a:01")
    shape = w.scheduler.demand.shape_of(pending("g red 1"))
    if possible:
        check_gang_possible(w.scheduler.placer, {shape: gang.least}, gang)
        return
    with pytest.raises(GpupoolError) as refused:
        check_gang_possible(w.scheduler.placer, {shape: gang.least}, gang)
    assert refused.value.code is ErrorCode.IMPOSSIBLE_REQUEST
    assert "room for" in refused.value.hint
