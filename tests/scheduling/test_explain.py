from dataclasses import dataclass

import pytest
from scheduling_world import NOW, World, node, pending, request, world

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import WorkloadId
from gpupool.scheduling.explain.wait_reason import Explanation
from gpupool.scheduling.explain.wait_reason import WaitCode as W
from gpupool.scheduling.holds.runtime_model import RunTimes
from gpupool.scheduling.scheduler import NodeChanged


def why(w: World, name: str, history: dict[tuple[str, str], RunTimes] | None = None) -> Explanation:
    found = w.scheduler.explain((WorkloadId(name), 0), w.now, history)
    assert found is not None
    return found


@dataclass(frozen=True)
class Case:
    code: W
    says: str  # a part of the message
    nodes: str
    pending: str
    running: str = ""
    projects: str = ""
    users: str = ""


CASES = [
    Case(
        W.WAITING_FOR_GPU,
        "needs 0.50 GPU on a t4; 0.30 free; 2 ahead of you in red",
        "a 1xT4",
        "p2 red 0.5 prio=1; p3 red 0.5 wait=90; p1 red 0.5 model=t4",
        "r1 red 0.7 on a:0",
    ),
    Case(
        W.WAITING_FOR_GPU,
        "needs 4 GPUs on one node; at most 2 whole GPUs free",
        "a 4xT4",
        "p1 red 4",
        "r1 red 2 on a:01",
    ),
    Case(
        W.WAITING_FOR_GPU,
        "needs 2 GPUs on one node; at most 0 whole GPUs free",
        "a 2xT4",
        "p1 red 2",
        "r1 red 0.4 on a:0; r2 red 0.4 on a:1",
    ),
    Case(
        W.PROJECT_QUOTA,
        "the quota of the project red is 1.00 GPU, 1.00 in use",
        "a 4xT4",
        "p1 red 1",
        "r1 red 1 on a:0",
        "red quota=1",
    ),
    Case(
        W.PROJECT_QUOTA,
        "protected work of red may not start on another GPU",
        "a 2xT4",
        "p1 red 0.6",
        "",
        "blue quota=2",
    ),
    Case(
        W.PROJECT_LIMIT,
        "limit of the project red is 2.00",
        "a 4xT4",
        "p1 red 2 train",
        "r1 red 1 on a:0",
        "red limit=2",
    ),
    Case(W.USER_LIMIT, "limit of the user ann is 1.00", "a 4xT4", "p1 red 1", "r1 blue 1 on a:0", "", "ann limit=1"),
    Case(
        W.USER_LIMIT,
        "per user of the project red is 1.00 GPU, 1.00 in use by ann",
        "a 4xT4",
        "p1 red 1",
        "r1 red 1 on a:0",
        "red user=1",
    ),
    Case(
        W.NO_SUCH_MODEL,
        "no node has a GPU of model h100; the pool has A100, T4",
        "a 1xT4 1xA100",
        "p1 red 1 model=h100",
    ),
    Case(W.TOO_LARGE, "the largest node has 4 GPUs", "a 4xT4", "p1 red 8"),
    Case(W.TOO_LARGE, "15.6 GiB", "a 4xT4", "p1 red 20000M"),
    Case(W.TOO_LARGE, "labels zone=x", "a 4xT4", "p1 red 1 zone=x"),
    Case(W.TOO_LARGE, "8 CPUs", "a 4xT4 cpus=8", "p1 red 1 cpus=9"),
    Case(W.TOO_LARGE, "no nodes", "", "p1 red 1"),
    Case(
        W.CPU_OR_MEMORY,
        "its node lacks the CPUs or memory",
        "a 4xT4 cpus=8",
        "p1 red 1 cpus=4",
        "r1 red 1 on a:0 cpus=6",
    ),
    Case(W.NODE_CORDONED, "accepts no work", "a 1xT4 cordoned", "p1 red 1"),
    Case(W.GPU_IN_USE_BY_OTHERS, "did not start", "a 1xT4 foreign=0", "p1 red 1"),
    Case(W.GPU_UNHEALTHY, "has failed", "a 1xT4 failed=0", "p1 red 1"),
    Case(W.BACK_OFF, "retried in 1m30s", "a 1xT4", "p1 red 1 later=90"),
    Case(W.DEPENDENCY, "other work", "a 1xT4", "p1 red 1 dependency"),
    Case(W.SUSPENDED, "suspended", "a 1xT4", "p1 red 1 suspended"),
    Case(W.PARALLELISM, "other replicas", "a 1xT4", "p1 red 1 parallelism"),
    Case(W.STARTING_SOON, "fits now", "a 1xT4", "p1 red 1"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}: {case.says}")
def test_wait_reason_is_first_blocking_rule(case: Case) -> None:
    w = world(case.nodes, case.pending, case.running, case.projects, case.users)
    before = w.scheduler.cluster.gpu_free.copy()
    found = why(w, "p1")
    assert (found.code, case.says in found.sentence) == (case.code, True), found
    assert (before == w.scheduler.cluster.gpu_free).all()


def test_workload_with_hold_starts_soon_and_others_see_the_hold() -> None:
    w = world("a 1xT4", "p1 blue 1", "r1 red 1 on a:0 train", "red quota=0; blue quota=1; green quota=1")
    w.scheduler.decide(w.now)
    assert why(w, "p1").code is W.STARTING_SOON


def test_wait_reason_names_hold() -> None:
    w = world("a 1xT4", "p1 red 1 wait=900; p2 red 0.5 wait=5", "r1 blue 0.5 on a:0 end=100")
    w.settle()
    found = why(w, "p2")
    assert found.code is W.RESERVED_FOR_OTHERS
    assert "time limit" in found.would_help[0]
    assert "held for it" in why(w, "p1").sentence


def test_running_workload_has_no_explanation() -> None:
    w = world("a 1xT4")
    assert w.scheduler.explain((WorkloadId("nobody"), 0), NOW) is None


def test_positions_are_counted_in_project_and_pool() -> None:
    w = world("a 1xT4", "p1 red 1; p2 blue 1; p3 red 1 prio=5; p4 red 1", "r1 red 1 on a:0")
    found = why(w, "p4")
    assert (found.position, found.ahead_in_project, found.ahead_total) == (3, 2, 3)
    assert why(w, "p3").position == 1


def test_estimate_from_time_limits() -> None:
    w = world("a 1xT4", "p2 red 1 wait=90 max=50; p1 red 1", "r1 red 1 on a:0 end=100")
    assert why(w, "p2").estimate_s == 100
    found = why(w, "p1")
    assert found.estimate_s == 150
    assert found.estimate_basis == "2 time limits of jobs ahead of it"


def test_estimate_from_past_jobs() -> None:
    past = {("red", "ann"): RunTimes(14, 1500.0)}
    found = why(world("a 1xT4", "p1 red 1", "r1 red 1 on a:0 age=1000"), "p1", past)
    assert found.estimate_s == 500
    assert found.estimate_basis == "the median of 14 past jobs"


def test_estimate_of_overlong_run_uses_longer_past_runs_or_its_limit() -> None:
    past = {("red", "ann"): RunTimes.of([1.0] * 10 + [2000.0, 3000.0, 9000.0])}
    expected = {0: 1, 1000: 2000, 1900: 1100, 2500: 500, 4000: 5000}
    for age, estimate_s in expected.items():
        found = why(world("a 1xT4", "p1 red 1", f"r1 red 1 on a:0 age={age}"), "p1", past)
        assert found.estimate_s == estimate_s
    assert found.estimate_basis == "1 past job that ran longer than a job ahead of it"
    outlasted = why(world("a 1xT4", "p1 red 1", "r1 red 1 on a:0 age=9001"), "p1", past)
    assert outlasted.estimate_s is None
    assert outlasted.estimate_basis == "1 job ahead of it has no time limit and has run longer than all past jobs"
    wider = past | {("red", ""): RunTimes.of([1.0, 10_001.0])}
    assert why(world("a 1xT4", "p1 red 1", "r1 red 1 on a:0 age=9001"), "p1", wider).estimate_s == 1000
    limited = why(world("a 1xT4", "p1 red 1", "r1 red 1 on a:0 age=1000 end=5000"), "p1", past)
    assert limited.estimate_s == 5000
    assert limited.estimate_basis == "1 time limit of jobs ahead of it"


def test_time_limit_precedes_few_past_jobs() -> None:
    w = world("a 1xT4", "p1 red 1", "r1 red 1 on a:0 age=1 end=7200")
    assert why(w, "p1", {("red", "ann"): RunTimes(3, 2.0)}).estimate_s == 7200
    assert why(w, "p1", {("red", "ann"): RunTimes(30, 60.0)}).estimate_s == 59


def test_estimate_from_past_jobs_and_time_limits() -> None:
    past = {("red", "ann"): RunTimes(14, 3000.0)}
    w = world("a 2xT4", "p1 red 2", "r1 red 1 on a:0 age=1000; r2 red 1 on a:1 end=10")
    found = why(w, "p1", past)
    assert found.estimate_s == 2000
    assert found.estimate_basis == "1 time limit of jobs ahead of it and the median of 14 past jobs"


def test_no_estimate_without_past_jobs_or_limits() -> None:
    found = why(world("a 1xT4", "p1 red 1", "r1 red 1 on a:0"), "p1")
    assert found.estimate_s is None
    assert "no running job has a time limit" in found.estimate_basis


def test_no_estimate_if_expected_ends_free_too_little() -> None:
    found = why(world("a 2xT4", "p1 red 2", "r1 red 1 on a:0 end=5; r2 red 1 on a:1"), "p1")
    assert (found.estimate_s, "do not free enough" in found.estimate_basis) == (None, True)


def test_end_of_back_off_is_the_estimate() -> None:
    assert why(world("a 1xT4", "p1 red 1 later=90"), "p1").estimate_s == 90


def test_estimate_far_down_a_queue_uses_start_rate() -> None:
    queue = "; ".join(f"q{n} red 1 wait=900 max=10" for n in range(600))
    found = why(world("a 1xT4", queue + "; p1 red 1", "r1 red 1 on a:0 end=5"), "p1")
    assert (found.ahead_in_project, found.estimate_s) == (600, 6005)
    assert "the rate at which GPUs become free" in found.estimate_basis


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("9", ErrorCode.IMPOSSIBLE_REQUEST, "4 GPUs"),
        ("90000M", ErrorCode.IMPOSSIBLE_REQUEST, "78.1 GiB"),
        ("1 model=h100", ErrorCode.UNKNOWN_MODEL, "A100, T4"),
        ("2 model=a100", ErrorCode.IMPOSSIBLE_REQUEST, "1 GPUs of model a100"),
        ("1 zone=nowhere", ErrorCode.IMPOSSIBLE_REQUEST, "zone=nowhere"),
        ("1 cpus=500", ErrorCode.IMPOSSIBLE_REQUEST, "64 CPUs"),
    ],
)
def test_request_that_no_node_can_serve_is_refused(text: str, code: ErrorCode, says: str) -> None:
    w = world("a 4xT4 cordoned; b 1xA100 zone=x")
    wanted = pending(f"p1 red {text}")
    with pytest.raises(GpupoolError) as error:
        w.scheduler.check_possible(wanted.request, wanted.cpus, wanted.memory_mib)
    assert error.value.code is code
    assert says in error.value.hint


def test_request_for_busy_cordoned_or_failed_capacity_is_accepted() -> None:
    w = world("a 4xT4 cordoned", "", "r1 red 4 on a:0123")
    w.scheduler.check_possible(request("4", {}))
    w.scheduler.apply(NodeChanged(node("a 4xT4 failed=0 foreign=1")))
    w.scheduler.check_possible(request("4", {}))


def test_empty_pool_refuses_every_request() -> None:
    with pytest.raises(GpupoolError) as error:
        world("").scheduler.check_possible(request("1", {}))
    assert error.value.hint == "The pool has no nodes."
