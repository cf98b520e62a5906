"""Cases of a topology with several levels: gangs are placed in the smallest domain that has room."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_cases import Case, table
from scheduling_world import NOW, World, pending, world

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.explain.feasibility import check_gang_possible
from gpupool.scheduling.policy import Policy, Settings
from gpupool.scheduling.state.cluster import ClusterState, Shapes, domains, levels_of

LEVELS = {"topology": ("block", "rack", "nvlink")}
RACKS = {"topology": ("block", "rack")}

CASES = [
    Case(
        "a gang starts in one rack without a request",
        "a 1xT4 block=1 rack=x; b 1xT4 block=1 rack=y; c 1xT4 block=1 rack=y",
        "p1 red 1 gang=2",
        "p1@b p1@c",
        settings=RACKS,
    ),
    Case(
        "one block is used if no rack has room",
        "a 1xT4 block=1 rack=x; b 1xT4 block=2 rack=y; c 1xT4 block=2 rack=z",
        "p1 red 1 gang=2",
        "p1@b p1@c",
        settings=RACKS,
    ),
    Case(
        "racks of one name in two blocks are two racks",
        "a 1xT4 block=1 rack=x; b 1xT4 block=2 rack=x; c 1xT4 block=2 rack=y",
        "p1 red 1 gang=2",
        "p1@b p1@c",
        settings=RACKS,
    ),
    Case(
        "a rack with room is used although the block of another one is fuller",
        "a 1xT4 block=1 rack=v; b 1xT4 block=1 rack=w; "
        "c 1xT4 block=2 rack=x; d 1xT4 block=2 rack=x; e 1xT4 block=2 rack=y",
        "p1 red 1 gang=2",
        "p1@c p1@d",
        settings=RACKS,
    ),
    Case(
        "a gang starts in two blocks if no block has room",
        "a 1xT4 block=1 rack=x; b 1xT4 block=2 rack=y",
        "p1 red 1 gang=2",
        "p1@a p1@b",
        settings=RACKS,
    ),
    Case(
        "a gang in two blocks uses few racks in each",
        "a 1xT4 block=1 rack=w; b 1xT4 block=1 rack=x; c 1xT4 block=1 rack=x; d 1xT4 block=2 rack=y",
        "p1 red 1 gang=4; p2 red 1",
        "p1@a p1@b p1@c p1@d",
        settings=RACKS,
    ),
    Case(
        "an NVLink domain comes before a rack",
        "a 1xT4 block=1 rack=x nvlink=1; b 1xT4 block=1 rack=x nvlink=2; c 1xT4 block=1 rack=x nvlink=2",
        "p1 red 1 gang=2",
        "p1@b p1@c",
        settings=LEVELS,
    ),
    Case(
        "a strict gang waits for one block and starts in one rack of it",
        "a 1xT4 block=1 rack=x; b 1xT4 block=2 rack=y; c 1xT4 block=2 rack=z; d 1xT4 block=2 rack=z",
        "p1 red 1 gang=2 within=block!",
        "p1@c p1@d",
        settings=RACKS,
    ),
    Case(
        "a strict gang does not start in two blocks",
        "a 1xT4 block=1 rack=x; b 1xT4 block=2 rack=x",
        "p1 red 1 gang=2 within=rack!; p2 red 1 gang=2 within=block!",
        "",
        settings=RACKS,
    ),
    Case(
        "a preferred label that is no level replaces the levels",
        "a 1xT4 block=1 rack=x zone=1; b 1xT4 block=2 rack=y zone=1; c 1xT4 block=2 rack=y zone=2",
        "p1 red 1 gang=2 within=zone",
        "p1@a p1@b",
        settings=RACKS,
    ),
    Case(
        "a required label that is no level is required",
        "a 1xT4 block=1 rack=x zone=1; b 1xT4 block=2 rack=y zone=1; c 1xT4 block=2 rack=y zone=2",
        "p1 red 1 gang=2 within=zone!",
        "p1@a p1@b",
        settings=RACKS,
    ),
    Case(
        "a member that joins starts in the rack of the others, else in their block",
        "a 2xT4 block=1 rack=x",
        "p1 red 1 gang=2-4",
        "p1@a p1@a",
        then=(
            ("node b 1xT4 block=2 rack=y cpus=0", "p1@a p1@a p1@b"),
            ("node c 1xT4 block=1 rack=z", "p1@a p1@a p1@b p1@c"),
        ),
        settings=RACKS,
    ),
    Case(
        "the nearest of two free nodes is used for a member that joins",
        "a 2xT4 block=1 rack=x; b 1xT4 block=2 rack=y; c 1xT4 block=1 rack=z",
        "p1 red 1 gang=2-3; p2 red 1 wait=50; p3 red 1 wait=51",
        "p1@a p1@a p2@b p3@c",
        running="",
        settings=RACKS,
        then=(("stop p2", "p1@a p1@a p1@b p3@c"),),
    ),
    Case(
        "victims are in one rack if that costs no more of them",
        "a 1xT4 block=1 rack=x; b 1xT4 block=1 rack=y; c 1xT4 block=1 rack=y",
        "p1 blue 1 gang=2",
        "p1@b p1@c r1@a",
        running="r1 red 1 on a:0 train age=500; r2 red 1 on b:0 train age=900; r3 red 1 on c:0 train age=800",
        projects="red quota=1; blue quota=2",
        evicted="r2 r3",
        settings=RACKS,
    ),
    Case(
        "a free GPU in another rack is used before a victim in the same one",
        "a 1xT4 block=1 rack=x; b 1xT4 block=2 rack=y; c 1xT4 block=2 rack=y",
        "p1 blue 1 gang=2",
        "p1@a p1@b r1@c",
        running="r1 red 1 on c:0 train age=900; r2 red 1 on b:0 train age=800",
        projects="red quota=1; blue quota=2",
        evicted="r2",
        settings=RACKS,
    ),
    Case(
        "a reservation is in one rack if that is not later",
        "a 1xT4 block=1 rack=x; b 1xT4 block=1 rack=y; c 1xT4 block=1 rack=y",
        "p1 red 1 gang=2 wait=900",
        "r1@a r2@b r3@c",
        running="r1 blue 1 on a:0 end=500; r2 blue 1 on b:0 end=500; r3 blue 1 on c:0 end=500",
        reserved="p1@b p1@c",
        settings=RACKS,
    ),
    Case(
        "the model that keeps a gang in one rack is used",
        "a 1xT4 block=1 rack=x; b 1xT4 block=1 rack=y; c 1xA100 block=1 rack=z; d 1xA100 block=1 rack=z",
        "p1 red 1 gang=2",
        "p1@c p1@d",
        settings=RACKS,
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()


places = st.tuples(st.sampled_from("12"), st.sampled_from("xy"), st.integers(0, 3))


@settings(max_examples=200, deadline=None)
@given(
    nodes=st.lists(places, min_size=1, max_size=7),
    members=st.integers(1, 6),
    required=st.sampled_from(("", "block", "rack")),
)
def test_gang_is_in_the_smallest_domain_with_room(
    nodes: list[tuple[str, str, int]], members: int, required: str
) -> None:
    lines = "; ".join(
        f"{'abcdefg'[at]} {max(gpus, 1)}xT4 block={block} rack={rack}" + (" down" if not gpus else "")
        for at, (block, rack, gpus) in enumerate(nodes)
    )
    within = f" within={required}!" if required else ""
    w = world(lines, f"p1 red 1 gang={members}{within}", **RACKS)  # type: ignore[arg-type]
    w.settle(watch=False)
    by_name = dict(zip("abcdefg", nodes, strict=False))
    used = [by_name[place.partition("@")[2]] for place in w.places().split()]
    depth = next((d for d in (2, 1, 0) if most_in_one(nodes, d) >= members), None)
    least_depth = {"": 0, "block": 1, "rack": 2}[required]
    one_node = any(gpus >= members for _, _, gpus in nodes)
    if depth is None or depth < least_depth:
        assert not used
        return
    assert len(used) == members
    assert len({place[:depth] for place in used}) == 1
    if one_node:
        assert len(set(w.places().split())) == 1


def most_in_one(nodes: list[tuple[str, str, int]], depth: int) -> int:
    """Return the largest number of GPUs in one domain; depth 0: the pool, 1: a block, 2: a rack."""
    rooms: dict[tuple[object, ...], int] = {}
    for node in nodes:
        rooms[node[:depth]] = rooms.get(node[:depth], 0) + node[2]
    return max(rooms.values())


@pytest.mark.parametrize(
    ("gang", "levels"),
    [
        (Gang(2, 2), ("rack", "block")),
        (Gang(2, 2, "rack"), ("rack", "block")),
        (Gang(2, 2, "rack", strict=True), ("rack",)),
        (Gang(2, 2, "block", strict=True), ("rack", "block")),
        (Gang(2, 2, "zone"), ("zone",)),
        (Gang(2, 2, "zone", strict=True), ("zone",)),
        (Gang(2, 2, "node"), ("node", "rack", "block")),
        (Gang(2, 2, "node", strict=True), ("node",)),
    ],
)
def test_levels_of_a_gang(gang: Gang, levels: tuple[str, ...]) -> None:
    assert levels_of(ClusterState(("block", "rack")), gang) == levels
    assert levels_of(ClusterState(), gang) == ((gang.within,) if gang.within else ())


def test_nodes_without_a_label_have_no_domain() -> None:
    w = world("a 1xT4 block=1 rack=x; b 1xT4 block=1; c 1xT4 rack=x", **RACKS)  # type: ignore[arg-type]
    cluster = w.scheduler.cluster
    rack, block = domains(cluster, "rack"), domains(cluster, "block")
    a, b, c = (cluster.rows[name] for name in "abc")
    assert rack[b] == block[c] == -1
    assert len({rack[a], rack[b], rack[c]}) == 3
    assert block[a] == block[b]


def helps(w: World) -> tuple[str, ...]:
    found = w.scheduler.explain((WorkloadId("p1"), 0), NOW)
    assert found is not None
    return found.would_help


def test_why_suggests_a_larger_domain() -> None:
    w = world(
        "a 1xT4 block=1 rack=x; b 1xT4 block=1 rack=y; c 1xT4 block=2 rack=x",
        "p1 red 1 gang=2 within=rack!",
        **RACKS,  # type: ignore[arg-type]
    )
    w.settle(watch=False)
    assert "require one block instead of one rack (--within-strictly block)" in helps(w)
    w = world("a 1xT4 block=1 rack=x; b 1xT4 block=2 rack=y", "p1 red 1 gang=2 within=rack!", **RACKS)  # type: ignore[arg-type]
    w.settle(watch=False)
    assert not any("block" in help_ for help_ in helps(w))
    assert "prefer one rack instead of requiring it" in helps(w)


def test_gang_larger_than_a_rack_of_its_block_is_refused() -> None:
    w = world("a 1xT4 block=1 rack=x; b 1xT4 block=2 rack=x", **RACKS)  # type: ignore[arg-type]
    shape = Shapes().get(pending("p1 red 1").request, 0, 0)
    with pytest.raises(GpupoolError) as caught:
        check_gang_possible(w.scheduler.placer, {shape: 2}, Gang(2, 2, "rack", strict=True))
    assert caught.value.code == ErrorCode.IMPOSSIBLE_REQUEST


@pytest.mark.parametrize(
    "labels",
    [("block", "block"), ("node",), ("",), ("a b",), ("-x",), tuple(f"level{n}" for n in range(9))],
)
def test_impossible_topologies_are_refused(labels: tuple[str, ...]) -> None:
    with pytest.raises(GpupoolError) as caught:
        Policy(topology=labels)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_policy_sets_the_topology_of_the_scheduler() -> None:
    policy = replace(Policy(), topology=("block", "example.com/rack"))
    assert policy.settings(Settings()).topology == ("block", "example.com/rack")
