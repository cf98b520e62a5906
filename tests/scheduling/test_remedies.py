"""Advice for waiting workloads: each sentence is tried, and must be true."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_world import NOW, World, pending, world

from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.explain.wait_reason import Explanation, WaitCode
from gpupool.scheduling.scheduler import PendingAdded, PendingRemoved
from gpupool.scheduling.values import EvictionKind

KEY = (WorkloadId("p2"), 0)


@dataclass(frozen=True)
class Case:
    says: str
    nodes: str
    pending: str
    running: str = ""
    projects: str = ""
    who: str = "p1"


def why(w: World, name: str = "p1") -> Explanation:
    w.scheduler.decide(w.now)
    found = w.scheduler.explain((WorkloadId(name), 0), w.now)
    assert found is not None
    return found


CASES = [
    Case(
        "request 0.3 instead of 0.5: fits now on a",
        "a 1xT4; b 1xT4",
        "p1 red 0.5",
        "r1 red 0.7 on a:0; r2 red 1 on b:0",
    ),
    Case("request 0.4 instead of 1: fits now on a", "a 1xT4", "p1 red 1", "r1 red 0.6 on a:0"),
    Case("request 0.25 instead of 0.5 each: fits now on a", "a 2xT4", "p1 red 2x0.5", "r1 red 2x0.75 on a:01"),
    Case(
        "request 2 GPUs instead of 4: fits now on b",
        "a 4xT4; b 4xT4",
        "p1 red 4",
        "r1 red 3 on a:012; r2 red 2 on b:01",
    ),
    Case("request 7.8 GiB instead of 11.7 GiB: fits now on a", "a 1xT4", "p1 red 12000M", "r1 red 0.5 on a:0"),
    Case("also accept the model A100: fits now on b", "a 1xT4; b 1xA100", "p1 red 1 model=t4", "r1 red 1 on a:0"),
    Case("remove the label zone=x: fits now on b", "a 1xT4 zone=x; b 1xT4", "p1 red 1 zone=x", "r1 red 1 on a:0"),
    Case(
        "request 4 CPUs instead of 6 and 400 MiB of memory instead of 500 MiB: fits now on a",
        "a 4xT4 cpus=8 mem=1000",
        "p1 red 1 cpus=6 mem=500",
        "r1 red 1 on a:0 cpus=4 mem=600",
    ),
    Case(
        "submit it as preemptible training, which may exceed the quota: fits now on a",
        "a 4xT4",
        "p1 red 1",
        "r1 red 1 on a:0",
        "red quota=1",
    ),
    Case(
        "set a time limit under 40m00s: fits now on a as backfill",
        "a 4xT4",
        "p1 red 4 wait=900; p2 blue 1 wait=5",
        "r1 blue 2 on a:01 end=2400",
        who="p2",
    ),
    Case(
        "2 more GPUs on one node: r7 and r9 on node b end first, in about 5m00s",
        "a 4xT4; b 4xT4",
        "p1 red 4",
        "r1 red 1 on a:0 end=900; r7 red 1 on b:0 end=100; r9 red 1 on b:1 end=300",
    ),
    Case("0.20 more GPU: r1 on node a ends first, in about 5m00s", "a 1xT4", "p1 red 0.5", "r1 red 0.7 on a:0 end=300"),
    Case(
        "r1, r2, r3 and 1 more on node a end first",
        "a 4xT4",
        "p1 red 4",
        "r1 red 1 on a:0 end=9; r2 red 1 on a:1 end=9; r3 red 1 on a:2 end=9; r4 red 1 on a:3 end=9",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.says)
def test_advice_for_waiting_workload(case: Case) -> None:
    w = world(case.nodes, case.pending, case.running, case.projects)
    helps = why(w, case.who).would_help
    assert any(case.says in said for said in helps), helps


def test_no_advice_that_a_limit_forbids() -> None:
    w = world("a 4xT4", "p1 red 2 train", "r1 red 1 on a:0 train", "red limit=1")
    found = why(w)
    assert found.code is WaitCode.PROJECT_LIMIT
    assert found.would_help == ("wait until red frees 2.00 GPU",)


def test_advice_names_number_of_gang_members_that_fit() -> None:
    w = world("a 2xT4; b 2xT4", "p1 red 1 gang=4", "r1 red 1 on a:0 end=60")
    found = why(w)
    assert (found.code, found.numbers["would_fit"]) == (WaitCode.GANG, 3)
    assert "3 of 4 fit" in found.sentence
    assert found.would_help == ("allow the gang to start with 3 members",)
    assert found.estimate_s == 60


def test_advice_names_strict_rack_of_gang() -> None:
    nodes = "a 2xT4 rack=r1; b 2xT4 rack=r2"
    found = why(world(nodes, "p1 red 1 gang=3 within=rack!"))
    assert "2 of 3 fit in one rack" in found.sentence
    assert "prefer one rack instead of requiring it" in found.would_help


def test_first_of_project_sees_which_project_is_before_it() -> None:
    w = world(
        "a 3xT4",
        "p1 red 1 train; p2 blue 2 train",
        "r1 red 1 on a:0 train end=50; r2 red 2 on a:12 train end=100",
        "red quota=1; blue quota=2",
        min_runtime_s=5000,
    )
    assert "next in red, but blue, which is below its fair share" in why(w).sentence


# --- advised requests that fit now really fit

USED = st.lists(st.sampled_from([0, 300, 500, 700, 900, 1000]), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(USED, st.sampled_from(["0.5", "1", "0.25", "2", "3", "4", "8000M", "16000M"]))
def test_advised_request_starts_at_once(used: list[int], asked: str) -> None:
    taken = "; ".join(f"r{slot} red {part / 1000:g} on a:{slot}" for slot, part in enumerate(used) if part)
    w = world("a 4xT4", f"p1 red {asked}", taken)
    if w.scheduler.decide(w.now).grants:
        return
    offers = [said for said in why(w).would_help if said.startswith("ask for") and "fits now" in said]
    w.scheduler.apply(PendingRemoved((WorkloadId("p1"), 0)))
    for number, said in enumerate(offers):
        amount = said.removeprefix("request ").split(" instead")[0]
        request = pending(f"x red {asked}").request
        if "GPU" in amount:
            smaller = replace(request, count=int(amount.split()[0]))
        elif "iB" in amount:
            continue  # rounded for output
        else:
            smaller = replace(request, permille=round(float(amount) * 1000))
        offered = replace(pending(f"x{number} red {asked}"), request=smaller)
        w.scheduler.apply(PendingAdded(offered, NOW))
        assert [str(grant.workload) for grant in w.scheduler.decide(w.now).grants] == [f"x{number}"]


def test_advice_names_department_limits() -> None:
    w = world(
        "a 4xT4",
        "p1 red 1; p2 blue 3 train",
        "r1 red 1 on a:0",
        "red dep=lab; blue dep=lab",
        departments="lab quota=1 limit=3",
    )
    assert why(w).code is WaitCode.DEPARTMENT_QUOTA
    assert "the quota of the department lab is 1.00 GPU, 1.00 in use" in why(w).sentence
    assert "the limit of the department lab is 3.00 GPU" in why(w, "p2").sentence


def test_advice_says_that_bounded_search_continues() -> None:
    borrowed = "; ".join(f"r{n} red 1 on {'ab'[n // 4]}:{n % 4} train age=900" for n in range(8))
    w = world("a 4xT4; b 4xT4", "p1 blue 4; p2 blue 4", borrowed, "red quota=0; blue quota=8", max_looks=1)
    assert w.scheduler.decide(w.now).exhausted
    w.scheduler.demand.searched.add(EvictionKind.RECLAIM, w.scheduler.demand.shape_of(w.waiting[KEY]), {0})
    found = w.scheduler.explain(KEY, w.now)
    assert found is not None
    assert (found.code, found.numbers["search"]) == (WaitCode.WAITING_FOR_GPU, "unfinished")
    assert "the search for victims continues" in found.sentence
