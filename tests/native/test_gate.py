"""Launches wait for the GPU's time and give it back: one tenant, an arbiter made by hand, a driver that counts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gate_bench import Arbiter, Tenant, build, build_share, until
from native_harness import PROGRAMS, build_native, compile_program

pytestmark = pytest.mark.alone  # it looks at what happens within milliseconds

Start = Callable[..., Tenant]


@pytest.fixture(scope="module")
def built(native_out: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(native_out, tmp_path_factory.mktemp("gate"))


@pytest.fixture
def arbiter(built: tuple[Path, Path], tmp_path: Path) -> Iterator[Arbiter]:
    with Arbiter(tmp_path / "lease", built[0]) as made:
        yield made


@pytest.fixture
def tenant(arbiter: Arbiter, built: tuple[Path, Path], native_out: Path) -> Iterator[Tenant]:
    with Tenant(arbiter, built[1], native_out / "share/libcuda.so.1") as made:
        yield made


def given_back(arbiter: Arbiter) -> bool:
    return until(lambda: arbiter.slot()["busy"] == 0)


def waits(arbiter: Arbiter, threads: int = 1) -> bool:
    return until(lambda: arbiter.slot()["waiting"] == threads)


# -- holding and giving back ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["launch 0 100 3", "launch p 100 3", "graph 0 100 3"])
def test_nothing_is_launched_before_the_grant(arbiter: Arbiter, tenant: Tenant, command: str) -> None:
    tenant.tell(command)
    assert waits(arbiter)
    assert arbiter.rung() > 0
    time.sleep(0.15)  # over the end of a slice of the wait
    assert tenant.report("kernels") == 0
    arbiter.grant()
    tenant.answer()
    assert tenant.report("kernels") == 3
    slot = arbiter.slot()
    assert slot["waiting"] == 0
    assert slot["busy"] != 0
    assert slot["waited_ns"] >= 140_000_000
    assert slot["ungated"] == 0


def test_process_without_grant_does_not_slow_neighbours(arbiter: Arbiter, tenant: Tenant) -> None:
    """Before the first gated launch there is no thread and no entry in the page."""
    assert len(list(Path(f"/proc/{tenant.process.pid}/task").iterdir())) == 1
    assert arbiter.slot()["busy"] == 0
    assert arbiter.slot()["waiting"] == 0


@pytest.mark.parametrize("stream", ["0", "1", "p"])
def test_revoked_gpu_is_returned_after_the_work(arbiter: Arbiter, tenant: Tenant, stream: str) -> None:
    arbiter.grant()
    tenant.do("create 1")
    tenant.do(f"launch {stream} 10000 1")
    tenant.do(f"launch {stream} 10000 4")
    arbiter.rung()
    arbiter.revoke()
    assert given_back(arbiter)
    assert time.monotonic_ns() >= tenant.report("finish_ns"), "given back while kernels ran"
    assert until(lambda: arbiter.rung() > 0)
    tenant.tell(f"launch {stream} 100 1")
    assert waits(arbiter)
    arbiter.grant()
    tenant.answer()
    assert tenant.report("kernels") == 6


def test_kernel_longer_than_the_lease_is_awaited(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    tenant.do("launch 0 150000 1")
    arbiter.revoke()
    time.sleep(0.05)
    assert arbiter.slot()["busy"] != 0
    assert given_back(arbiter)
    assert time.monotonic_ns() >= tenant.report("finish_ns")


def test_new_grant_during_draining_is_kept(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    tenant.do("launch 0 150000 1")
    arbiter.revoke()
    time.sleep(0.02)
    arbiter.grant()
    tenant.do("launch 0 1000 1")
    assert arbiter.slot()["busy"] == arbiter.epoch << 2 | 1
    time.sleep(0.2)
    assert arbiter.slot()["busy"] != 0, "the old revocation must not give the new grant back"


def test_grant_revoked_at_once_is_not_used(arbiter: Arbiter, tenant: Tenant) -> None:
    tenant.tell("launch 0 100 1")
    assert waits(arbiter)
    for _ in range(200):
        arbiter.lease.set_control("grant", (arbiter.epoch + 1) << 2 | 1)
        arbiter.grant()
        arbiter.revoke()
    assert given_back(arbiter)
    launched = tenant.report("kernels")
    time.sleep(0.05)
    assert tenant.report("kernels") == launched
    arbiter.grant()
    assert until(lambda: tenant.report("kernels") == 1)


def test_idle_gpu_is_offered_to_waiting_tenants(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant(contended=True)
    tenant.do("launch 0 20000 1")
    assert arbiter.slot()["busy"] != 0
    arbiter.rung()
    assert given_back(arbiter)
    assert time.monotonic_ns() >= tenant.report("finish_ns")
    assert until(lambda: arbiter.rung() > 0)
    tenant.do("launch 0 100 1")  # the same grant still holds
    assert arbiter.slot()["waiting"] == 0


def test_idle_gpu_without_demand_is_kept(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    tenant.do("launch 0 100 1")
    time.sleep(0.05)
    assert arbiter.slot()["busy"] != 0
    arbiter.contend()
    assert given_back(arbiter)


def seen_while_busy(arbiter: Arbiter, tenant: Tenant, work: str) -> tuple[set[int], int]:
    """Return the page's busy words from the first kernel of some work to the end of its last, and the idle time."""
    idle = tenant.report("idle_ns")
    tenant.tell(work)
    assert until(lambda: arbiter.slot()["busy"] != 0)
    seen = [(arbiter.slot()["busy"], time.monotonic_ns()) for _ in range(100) if time.sleep(0.002) is None]
    tenant.answer()
    finish = tenant.report("finish_ns")
    assert sum(at < finish for _, at in seen) > 10
    return {busy for busy, at in seen if at < finish}, tenant.report("idle_ns") - idle


def test_gpu_is_not_returned_within_a_kernel(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant(contended=True)
    assert seen_while_busy(arbiter, tenant, "launch 0 300000 1") == ({arbiter.epoch << 2 | 1}, 0)


def test_gpu_is_not_returned_between_kernels(arbiter: Arbiter, tenant: Tenant) -> None:
    """But where the host was behind: then the GPU is idle for a moment, and is offered, as it should be."""
    arbiter.grant(contended=True)
    for _ in range(5):
        seen, idle_ns = seen_while_busy(arbiter, tenant, "launch 0 100 3000")
        if seen == {arbiter.epoch << 2 | 1}:
            return
        assert idle_ns > 0, "given back, and never idle"
    pytest.fail("given back in every round")


# -- threads, streams, captures, contexts -----------------------------------------------------------------------------


def test_all_threads_and_streams_wait_and_drain(arbiter: Arbiter, tenant: Tenant) -> None:
    for stream in range(1, 5):
        tenant.do(f"create {stream}")
    for stream in ("1", "2", "3", "4", "p", "p", "0"):
        tenant.do(f"thread launch {stream} 300 50")
    assert waits(arbiter, 7)
    arbiter.grant()
    assert until(lambda: tenant.report("kernels") > 20)
    arbiter.revoke()
    assert given_back(arbiter)
    launched = tenant.report("kernels")
    assert time.monotonic_ns() >= tenant.report("finish_ns")
    time.sleep(0.02)
    assert tenant.report("kernels") == launched < 350
    arbiter.grant()
    tenant.do("join")
    assert tenant.report("kernels") == 350
    arbiter.revoke()
    assert given_back(arbiter), "the threads are gone, their streams too"


def test_destroyed_stream_is_drained_first(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    tenant.do("create 1")
    tenant.do("launch 1 1000 1")
    tenant.do("launch 1 60000 1")
    tenant.do("destroy 1")
    arbiter.revoke()
    assert given_back(arbiter)
    assert time.monotonic_ns() >= tenant.report("finish_ns")
    assert tenant.report("dead") == 0


def test_many_streams_are_created_and_destroyed(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    for _ in range(300):
        for command in ("create 1", "launch 1 10 1", "destroy 1"):
            tenant.do(command)
    arbiter.revoke()
    assert given_back(arbiter)
    assert tenant.report("dead") == 0


def test_context_destroyed_while_draining_is_given_back(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    tenant.do("context")
    tenant.do("launch 0 300000 1")
    arbiter.revoke()
    time.sleep(0.02)
    assert arbiter.slot()["busy"] != 0
    tenant.do("uncontext")
    assert given_back(arbiter)
    arbiter.grant()
    tenant.do("context")
    tenant.do("launch 0 100 5")


def test_capture_is_neither_delayed_nor_broken(arbiter: Arbiter, tenant: Tenant) -> None:
    for stream in (1, 2):
        tenant.do(f"create {stream}")
    arbiter.grant()
    tenant.do("launch 1 20000 1")
    tenant.do("launch 2 20000 1")
    tenant.do("begin 1")
    arbiter.revoke()
    assert tenant.do("launch 1 100 500") < 5
    assert given_back(arbiter), "what came before the capture is seen to end"
    assert tenant.report("kernels") == 2
    tenant.do("thread launch 2 300 20")
    assert waits(arbiter)
    arbiter.grant()
    tenant.do("join")
    tenant.do("end 1")
    assert tenant.report("spoilt") == 0
    tenant.do("launch 1 100 1")
    assert tenant.report("kernels") == 23
    arbiter.revoke()
    assert given_back(arbiter)
    assert tenant.report("spoilt") == 0


def test_capture_on_other_stream_does_not_block_draining(arbiter: Arbiter, tenant: Tenant) -> None:
    tenant.do("create 9")
    arbiter.grant()
    tenant.do("launch 0 20000 1")
    tenant.do("launch 0 20000 1")
    tenant.do("begin 9")
    arbiter.revoke()
    assert given_back(arbiter), "the default stream was marked before it became unusable"
    assert time.monotonic_ns() >= tenant.report("finish_ns")
    tenant.do("end 9")
    assert tenant.report("spoilt") == 0


# -- processes ---------------------------------------------------------------------------------------------------------


def test_forked_child_has_own_slot_and_gate(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    tenant.do("launch 0 100 5")
    arbiter.revoke()
    assert given_back(arbiter)
    tenant.tell("fork launch 0 100 3")
    assert until(lambda: arbiter.slot(1)["waiting"] == 1)
    arbiter.grant()
    tenant.answer()
    assert arbiter.slot(1)["busy"] == 0, "given back when the child exited"
    tenant.do("launch 0 100 1")


def test_exec_during_gated_work(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    tenant.do("launch 0 50000 1")
    tenant.do("exec")
    assert arbiter.slot()["owner"] != 0
    tenant.do("launch 0 100 1")
    arbiter.revoke()
    assert given_back(arbiter)


def test_exit_while_a_thread_waits(arbiter: Arbiter, tenant: Tenant) -> None:
    tenant.do("thread launch 0 100 1")
    assert waits(arbiter)
    tenant.tell("exit")
    tenant.end()
    assert tenant.report("kernels") == 0


def test_exit_returns_the_gpu(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    tenant.do("launch 0 100 1")
    arbiter.rung()
    tenant.tell("exit")
    tenant.end()
    assert arbiter.slot()["busy"] == 0
    assert arbiter.rung() > 0


# -- no wait without an end --------------------------------------------------------------------------------------------


def test_work_continues_without_arbiter_and_is_gated_when_it_returns(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.beats.clear()
    time.sleep(0.1)
    took = tenant.do("launch 0 100 5")
    assert 0.9 < took < 5
    assert arbiter.slot()["ungated"] == 5
    assert tenant.do("launch 0 100 5") < 0.5
    assert arbiter.slot()["waiting"] == 0
    arbiter.beats.set()
    time.sleep(0.15)
    tenant.tell("launch 0 100 1")
    assert waits(arbiter)
    assert tenant.report("kernels") == 10
    arbiter.grant()
    tenant.answer()
    assert arbiter.slot()["ungated"] == 10


def test_wait_for_a_grant_is_limited(built: tuple[Path, Path], tmp_path: Path, impatient: Path) -> None:
    with Arbiter(tmp_path / "lease", built[0]) as arbiter, Tenant(arbiter, built[1], impatient) as tenant:
        took = tenant.do("launch 0 100 1")
        assert 0.29 < took < 5
        assert arbiter.slot()["ungated"] == 1
        assert tenant.do("launch 0 100 1") > 0.29, "one launch is let through, not all that follow"
        assert arbiter.slot()["ungated"] == 2


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a share library that waits 300 ms at most."""
    return build_share(tmp_path_factory.mktemp("impatient"), "-DGP_LONGEST_WAIT_MS=300")


@pytest.fixture(scope="module", params=["as it is", "with threads held up"])
def racing(request: pytest.FixtureRequest, native_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "as it is":
        return native_out / "share/libcuda.so.1"
    return build_share(tmp_path_factory.mktemp("races"), "-DGP_RACES")


def test_nothing_is_launched_after_gpu_was_reported_idle(
    arbiter: Arbiter, built: tuple[Path, Path], racing: Path, tmp_path: Path
) -> None:
    """Many grants, taken away after any time at all, while four threads launch."""
    rounds = compile_program(PROGRAMS / "gate_rounds.c", tmp_path)
    with Tenant(arbiter, built[1], racing) as tenant:
        tenant.do("create 1")
        for command in ("launch 0", "launch 1", "graph 1", "launch p"):
            tenant.do(f"thread {command} 1 100000000")
        lease = arbiter.lease.path
        files = (lease / "control", lease / "status", tenant.report_path)
        ran = subprocess.run([rounds, *files, "1", "1500"], capture_output=True, text=True, check=True)
        made, used = map(int, ran.stdout.split())
        assert made > 300
        assert used > 100
        assert tenant.report("late") == 0
        assert tenant.report("kernels") > made


# -- pacing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "kernels", "queued_ms"),
    [("launch 0 50 8000", 8000, 4.5), ("launch 0 5000 60", 60, 9.0), ("mixed 0 600", 600, 11.0)],
)
def test_queue_stays_short_and_gpu_busy(
    arbiter: Arbiter, tenant: Tenant, command: str, kernels: int, queued_ms: float
) -> None:
    arbiter.grant()
    tenant.do(command)
    assert tenant.report("kernels") == kernels
    assert tenant.report("most_queued_ns") < queued_ms * 1e6
    worked = tenant.report("finish_ns") - tenant.report("first_ns")
    assert tenant.report("idle_ns") < 0.05 * worked, "0.1 % where the machine is quiet"
    assert tenant.report("records") < kernels / 4 or kernels < 100
    assert arbiter.slot()["paced_ns"] > 0


def test_graphs_are_paced_by_their_earlier_cost(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    tenant.do("graph 0 300 1000")
    assert tenant.report("most_queued_ns") < 5_500_000
    assert arbiter.slot()["graph_launches"] == 1000
    assert tenant.report("records") < 600


def test_program_that_waits_for_each_launch_is_never_paced(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    tenant.do("launch 0 100 2")
    before = arbiter.slot()["paced_ns"]
    for _ in range(50):
        tenant.do("launch 0 100 1")
        tenant.do("sync 0")
    assert arbiter.slot()["paced_ns"] - before < 5_000_000


# -- the thread sanitizer ----------------------------------------------------------------------------------------------


def test_there_are_no_data_races(tmp_path: Path) -> None:
    out = build_native("thread")
    driver, client = build(out, tmp_path / "built", "-fsanitize=thread")
    share = out / "share/libcuda.so.1"
    options = "exitcode=66 halt_on_error=0"
    with Arbiter(tmp_path / "lease", driver) as arbiter, Tenant(arbiter, client, share, TSAN_OPTIONS=options) as tenant:
        for stream in (1, 2):
            tenant.do(f"create {stream}")
        for stream in ("1", "1", "2", "p", "p", "0"):
            tenant.do(f"thread launch {stream} 100 400")
        tenant.do("thread graph 0 200 50")
        for turn in range(20):
            arbiter.grant(contended=turn % 2 == 0)
            for command in ("create 3", "launch 3 50 2", "begin 3", "launch 3 50 2", "end 3", "destroy 3"):
                tenant.do(command)
            arbiter.revoke()
            assert given_back(arbiter)
        arbiter.grant()
        tenant.do("join")
        tenant.tell("exit")
        assert "ThreadSanitizer" not in tenant.end()
