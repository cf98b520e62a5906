"""Launch gating on the fake driver, which has the real one's rules for captures, contexts and default streams."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gate_bench import Arbiter, Tenant, build, until
from native_harness import FakeGpu

pytestmark = pytest.mark.alone  # it looks at what happens within milliseconds

LONG_MS = 120


@pytest.fixture(scope="module")
def client(native_out: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(native_out, tmp_path_factory.mktemp("gate"))[1]


@pytest.fixture
def arbiter(native_out: Path, tmp_path: Path) -> Iterator[Arbiter]:
    with Arbiter(tmp_path / "lease", native_out / "fake/libcuda.so.1", FakeGpu().uuid_bytes) as made:
        yield made


@pytest.fixture
def tenant(arbiter: Arbiter, client: Path, native_out: Path, fake_gpus: Path) -> Iterator[Tenant]:
    fake = {"GPUPOOL_FAKE_GPUS": str(fake_gpus), "GATE_FAKE": "1"}
    with Tenant(arbiter, client, native_out / "share/libcuda.so.1", **fake) as made:
        yield made


def given_back(arbiter: Arbiter) -> bool:
    return until(lambda: arbiter.slot()["busy"] == 0)


@pytest.mark.parametrize("stream", ["0", "1", "9"])
@pytest.mark.parametrize("command", ["launch", "graph"])
def test_returned_gpu_is_idle(arbiter: Arbiter, tenant: Tenant, stream: str, command: str) -> None:
    arbiter.grant()
    for created in (1, 9):
        tenant.do(f"create {created}")
    tenant.do(f"{command} {stream} 100 1")
    begun = time.monotonic()
    tenant.do(f"{command} {stream} {LONG_MS * 1000} 1")
    arbiter.revoke()
    assert given_back(arbiter)
    assert time.monotonic() - begun >= LONG_MS / 1000
    assert tenant.do(f"sync {stream}") < LONG_MS / 2000


def test_per_thread_default_stream_is_drained(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    tenant.do("thread launch p 100 20")
    tenant.do("join")
    begun = time.monotonic()
    tenant.do(f"launch p {LONG_MS * 1000} 1")
    arbiter.revoke()
    assert given_back(arbiter)
    assert time.monotonic() - begun >= LONG_MS / 1000


@pytest.mark.parametrize("captured", ["1", "9"])
def test_capture_during_other_work(arbiter: Arbiter, tenant: Tenant, captured: str) -> None:
    for created in (1, 2, 9):
        tenant.do(f"create {created}")
    arbiter.grant(contended=True)
    for stream in ("0", "1", "2", "9", "p"):
        tenant.do(f"launch {stream} 2000 2")
    tenant.do(f"begin {captured}")
    tenant.do("thread launch 2 300 300")
    tenant.do(f"launch {captured} 100 50")
    for _ in range(5):
        arbiter.revoke()
        assert given_back(arbiter)
        assert tenant.do(f"launch {captured} 100 50") < 5
        arbiter.grant(contended=True)
        time.sleep(0.01)
    tenant.do("join")
    tenant.do(f"end {captured}")  # would say so if it had been invalidated
    tenant.do(f"launch {captured} 100 2")
    arbiter.revoke()
    assert given_back(arbiter)


def test_context_with_work_can_be_destroyed(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    tenant.do("context")
    tenant.do(f"launch 0 {LONG_MS * 1000} 1")
    arbiter.revoke()
    tenant.do("uncontext")
    assert given_back(arbiter)
    arbiter.grant()
    tenant.do("context")
    tenant.do("launch 0 100 20")
    arbiter.revoke()
    assert given_back(arbiter)


def test_pacing_keeps_the_gpu_busy(arbiter: Arbiter, tenant: Tenant) -> None:
    arbiter.grant()
    tenant.do("launch 0 50 2000")
    tenant.do("sync 0")
    assert tenant.do("launch 0 50 6000") + tenant.do("sync 0") < 0.3 * 1.3, "its kernels take 0.3 s"
