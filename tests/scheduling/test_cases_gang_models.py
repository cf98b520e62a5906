"""Cases of gangs in pools of several GPU models: all members use one model, unless the gang may mix them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_cases import Case, table
from scheduling_world import NOW, World, pending, world

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.domain.work.gang import Gang
from gpupool.scheduling.explain.feasibility import check_gang_possible
from gpupool.scheduling.explain.wait_case import WaitCode
from gpupool.scheduling.scheduler import LeaseReleased
from gpupool.scheduling.state.cluster import Shapes

CASES = [
    Case("a gang does not mix models", "a 1xT4; b 1xA100", "p1 red 1 gang=2", ""),
    Case("a gang that may mix models does", "a 1xT4; b 1xA100", "p1 red 1 gang=2 models=mixed", "p1@a p1@b"),
    Case("a gang starts on the model that fits it", "a 1xT4; b 1xA100; c 1xA100", "p1 red 1 gang=2", "p1@b p1@c"),
    Case(
        "a gang uses the GPUs of one model of a node with two",
        "a 1xT4 2xA100",
        "p1 red 1 gang=2; p2 red 1",
        "p1@a p1@a p2@a",
        slots="p2:0",
    ),
    Case(
        "a member with two GPUs gets GPUs of one model",
        "a 1xT4 1xA100; b 2xA100; c 2xA100",
        "p1 red 2 gang=2; p2 red 1",
        "p1@b p1@c p2@a",
    ),
    Case(
        "the model that fits more members is used",
        "a 2xT4; b 3xA100",
        "p1 red 1 gang=2-4",
        "p1@b p1@b p1@b",
    ),
    Case(
        "the model with which fewer nodes are needed is used",
        "a 1xT4; b 1xT4; c 2xA100",
        "p1 red 1 gang=2",
        "p1@c p1@c",
    ),
    Case(
        "members that join get the model of the others",
        "a 2xT4",
        "p1 red 1 gang=2-3",
        "p1@a p1@a",
        then=(("node b 1xA100", "p1@a p1@a"), ("node c 1xT4", "p1@a p1@a p1@c")),
    ),
    Case(
        "members that join a gang that may mix models get any",
        "a 2xT4",
        "p1 red 1 gang=2-3 models=mixed",
        "p1@a p1@a",
        then=(("node b 1xA100", "p1@a p1@a p1@b"),),
    ),
    Case(
        "a gang that names two models uses one of them",
        "a 1xT4; b 1xA100; c 1xL4; d 1xL4",
        "p1 red 1 gang=2 model=t4,a100",
        "",
    ),
    Case(
        "a gang in parts of GPUs uses one model",
        "a 1xT4; b 1xA100",
        "p1 red 0.6 gang=2; p2 red 0.4 gang=2",
        "p2@a p2@a",
    ),
    Case(
        "a strict gang uses one model in one rack",
        "a 1xT4 rack=x; b 1xA100 rack=x; c 1xA100 rack=y; d 1xA100 rack=y",
        "p1 red 1 gang=2 within=rack!",
        "p1@c p1@d",
    ),
    Case(
        "roles with different requests use one model",
        "a 1xT4; b 1xA100 cpus=2; c 1xA100",
        "p1 red 0+1+1",
        "p1@b p1@b p1@c",
    ),
    Case("members of different requests wait for one model", "a 2xT4; b 1xA100", "p1 red 1+2", ""),
    Case(
        "a gang evicts on GPUs of one model",
        "a 1xT4; b 1xA100; c 1xA100",
        "p1 blue 1 gang=2",
        "r1@a p1@b p1@c",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on b:0 train age=800; r3 red 1 on c:0 train age=700",
        projects="red quota=1; blue quota=2",
        evicted="r2 r3",
    ),
    Case(
        "a gang evicts nobody if no model can hold it",
        "a 1xT4; b 1xA100",
        "p1 blue 1 gang=2",
        "r1@a r2@b",
        running="r1 red 1 on a:0 train age=900; r2 red 1 on b:0 train age=800",
        projects="red quota=0; blue quota=2",
    ),
    Case(
        "a gang preempts on GPUs of one model",
        "a 1xT4; b 1xA100; c 1xA100",
        "p1 red 1 gang=2 prio=9",
        "r1@a p1@b p1@c",
        running="r1 red 1 on a:0 train age=100; r2 red 1 on b:0 train age=900; r3 red 1 on c:0 train age=800",
        evicted="r2 r3",
    ),
    Case(
        "a reservation is for GPUs of one model",
        "a 1xT4; b 1xA100; c 1xA100",
        "p1 red 1 gang=2 wait=900; p2 red 1 wait=5",
        "p2@a r1@b r2@c",
        running="r1 blue 1 on b:0 end=500; r2 blue 1 on c:0 end=900",
        reserved="p1@b p1@c",
    ),
]


@pytest.mark.parametrize("case", table(CASES))
def test_case(case: Case) -> None:
    case.check()


def models_of(w: World, workload: str) -> set[str]:
    """Return the models of the GPUs that a workload holds."""
    cluster = w.scheduler.cluster
    return {
        cluster.models[number]
        for key, claim in cluster.claims.items()
        if key[0] == workload
        for number in cluster.model[claim.row][claim.gpu > 0].tolist()
    }


node_gpus = st.lists(st.sampled_from(("T4", "A100", "L4")), min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(
    nodes=st.lists(node_gpus, min_size=1, max_size=4),
    used=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=4),
    count=st.integers(1, 2),
    least=st.integers(1, 3),
    spare=st.integers(0, 2),
)
def test_gang_starts_on_one_model_whenever_one_has_room(
    nodes: list[list[str]], used: set[tuple[int, int]], count: int, least: int, spare: int
) -> None:
    names = "abcd"
    lines = "; ".join(f"{names[at]} {' '.join(f'1x{model}' for model in gpus)}" for at, gpus in enumerate(nodes))
    held = [(at, slot) for at, slot in sorted(used) if at < len(nodes) and slot < len(nodes[at])]
    running = "; ".join(f"r{names[at]}{slot} blue 1 on {names[at]}:{slot}" for at, slot in held)
    w = world(lines, f"p1 red {count} gang={least}-{least + spare}", running)
    w.settle(watch=False)
    room = {
        model: sum(
            sum(gpu == model and (at, slot) not in held for slot, gpu in enumerate(gpus)) // count
            for at, gpus in enumerate(nodes)
        )
        for model in ("T4", "A100", "L4")
    }
    started = sum(place.startswith("p1@") for place in w.places().split())
    most = max(room.values())
    assert started == (min(most, least + spare) if most >= least else 0)
    assert len(models_of(w, "p1")) <= 1


@settings(max_examples=100, deadline=None)
@given(
    nodes=st.lists(node_gpus, min_size=1, max_size=4),
    events=st.lists(st.sampled_from(("p1", "p2", "p3")), max_size=6),
    sizes=st.tuples(*[st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(0, 2))] * 3),
    priorities=st.tuples(*[st.integers(0, 2)] * 3),
)
def test_no_history_mixes_the_models_of_a_gang(
    nodes: list[list[str]],
    events: list[str],
    sizes: tuple[tuple[int, int, int], ...],
    priorities: tuple[int, ...],
) -> None:
    lines = "; ".join(f"{'abcd'[at]} {' '.join(f'1x{m}' for m in gpus)}" for at, gpus in enumerate(nodes))
    gangs = [
        f"p{number} red {count} gang={least}-{least + spare} train prio={priority} wait=900"
        for number, ((count, least, spare), priority) in enumerate(zip(sizes, priorities, strict=True), 1)
    ]
    w = world(lines, "; ".join(gangs), min_runtime_s=0.0)
    w.settle(watch=False)
    for name in ("p1", "p2", "p3"):
        assert len(models_of(w, name)) <= 1
    for name in events:  # it ends, and others may start or grow
        for key in [key for key in w.scheduler.demand.running if key[0] == name]:
            w.scheduler.apply(LeaseReleased(key))
        w.settle(watch=False)
        for other in ("p1", "p2", "p3"):
            assert len(models_of(w, other)) <= 1


def explained(w: World, index: int = 0) -> tuple[str, str, tuple[str, ...]]:
    found = w.scheduler.explain((WorkloadId("p1"), index), NOW)
    assert found is not None
    return found.code, found.sentence, found.would_help


def test_why_names_the_model() -> None:
    w = world("a 1xT4; b 1xA100", "p1 red 1 gang=2")
    w.settle(watch=False)
    code, sentence, helps = explained(w)
    assert code is WaitCode.GANG
    assert "1 of 2 fit on GPUs of one model" in sentence
    assert "allow several GPU models (--mixed-models)" in helps


def test_why_explains_a_member_that_finds_only_other_models() -> None:
    w = world("a 2xT4; b 1xA100", "p1 red 1 gang=2-3")
    w.settle(watch=False)
    code, sentence, _ = explained(w, 2)
    assert code is WaitCode.GANG
    assert "of the GPU model of the other members; only others are free" in sentence


def test_gang_that_no_model_can_hold_is_refused() -> None:
    w = world("a 2xT4; b 2xA100")
    shape = Shapes().get(pending("p1 red 1").request, 0, 0)
    with pytest.raises(GpupoolError) as caught:
        check_gang_possible(w.scheduler.placer, {shape: 3}, Gang(3, 3))
    assert caught.value.code == ErrorCode.IMPOSSIBLE_REQUEST
    assert caught.value.hint == (
        "The pool has room for at most 2 of them when empty, on GPUs of one model. Allow several: `--mixed-models`."
    )
    check_gang_possible(w.scheduler.placer, {shape: 4}, Gang(4, 4, mixed_models=True))
    check_gang_possible(w.scheduler.placer, {shape: 2}, Gang(2, 2))
