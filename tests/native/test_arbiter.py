"""gpupool-arbiter with tenants that are pages: who may launch when."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from arbiter_harness import Arbiter, Tenant, eventually
from lease_folder import POLICY_CAP, POLICY_NONE, LeasedGpu, LeaseFolder

DRAIN_S = 0.050


@pytest.fixture
def arbiter(native_out: Path) -> Iterator[Arbiter]:
    with Arbiter(native_out / "gpupool-arbiter") as running:
        yield running


def tenant_of(arbiter: Arbiter, path: Path, **about: int) -> Tenant:
    """Create a lease with one process, this one, on GPU 1."""
    tenant = Tenant(path, **about)
    tenant.claim(os.getpid())
    arbiter.add(tenant)
    return tenant


@pytest.fixture
def pair(arbiter: Arbiter, tmp_path: Path) -> tuple[Tenant, Tenant]:
    return tenant_of(arbiter, tmp_path / "a"), tenant_of(arbiter, tmp_path / "b")


def test_arbiter_prints_its_version(native_out: Path) -> None:
    said = subprocess.run([native_out / "gpupool-arbiter", "--help"], capture_output=True, text=True, check=True)
    assert "node's agent" in said.stdout


def test_arbiter_ends_with_its_input(arbiter: Arbiter) -> None:
    assert arbiter.end() == 0


def test_single_tenant_is_granted_and_keeps_the_gpu(arbiter: Arbiter, tmp_path: Path) -> None:
    tenant = tenant_of(arbiter, tmp_path / "a")
    assert not tenant.granted()
    tenant.wait_for_grant()
    eventually(tenant.granted)
    assert tenant.epoch() == 1
    tenant.work()
    tenant.drained()
    time.sleep(0.2)
    assert tenant.granted()
    assert tenant.epoch() == 1


def test_two_tenants_take_turns(pair: tuple[Tenant, Tenant]) -> None:
    for tenant in pair:
        tenant.wait_for_grant()
    for _ in range(4):
        eventually(lambda: any(tenant.granted() for tenant in pair))
        holder = next(tenant for tenant in pair if tenant.granted())
        other = next(tenant for tenant in pair if tenant is not holder)
        holder.work()
        eventually(lambda of=holder: of.contended() or not of.granted())
        eventually(lambda of=holder: not of.granted())
        holder.set_slot(0, "waiting", 1)
        assert not other.granted() or holder.slot(0)["busy"] == 0
        holder.drained()
        eventually(other.granted)
    assert all(tenant.epoch() >= 2 for tenant in pair)


def test_grant_of_idle_tenant_is_passed_on_at_once(pair: tuple[Tenant, Tenant]) -> None:
    first, second = pair
    first.wait_for_grant()
    eventually(first.granted)
    first.work()
    first.drained()
    second.wait_for_grant()
    eventually(second.granted)
    assert not first.granted()


def test_tenant_that_does_not_drain_is_overlapped(pair: tuple[Tenant, Tenant]) -> None:
    first, second = pair
    first.wait_for_grant()
    eventually(first.granted)
    first.work()
    second.wait_for_grant()
    eventually(lambda: not first.granted())
    revoked = time.monotonic()
    eventually(second.granted)
    assert time.monotonic() - revoked > DRAIN_S / 2
    second.work()
    first.set_slot(0, "waiting", 1)
    second.drained()
    first.ring()
    eventually(first.granted)


def test_leaving_tenant_is_not_awaited(arbiter: Arbiter, pair: tuple[Tenant, Tenant]) -> None:
    first, second = pair
    first.wait_for_grant()
    eventually(first.granted)
    first.work()
    arbiter.tell(f"remove {first.path}")
    second.wait_for_grant()
    eventually(second.granted)
    assert not first.granted()


def test_policy_none_is_granted_permanently(arbiter: Arbiter, tmp_path: Path) -> None:
    free = tenant_of(arbiter, tmp_path / "a", policy=POLICY_NONE)
    gated = tenant_of(arbiter, tmp_path / "b")
    assert free.granted()
    gated.wait_for_grant()
    eventually(gated.granted)
    assert free.granted()
    assert not gated.contended()


def test_cap_limits_a_single_tenant(arbiter: Arbiter, tmp_path: Path) -> None:
    tenant = tenant_of(arbiter, tmp_path / "a", policy=POLICY_CAP, weight=200)
    tenant.wait_for_grant()
    for _ in range(5):
        eventually(tenant.granted)
        assert tenant.contended()
        tenant.work()
        eventually(lambda: not tenant.granted())
        tenant.set_slot(0, "waiting", 1)
        tenant.drained()
    held = arbiter.usage(tenant)
    assert held is not None
    eventually(lambda: (arbiter.usage(tenant) or held)["held_ns"] > held["held_ns"])
    assert tenant.epoch() >= 5


def test_gpus_are_independent(arbiter: Arbiter, tmp_path: Path) -> None:
    here, there = tenant_of(arbiter, tmp_path / "a", gpu=1), tenant_of(arbiter, tmp_path / "b", gpu=2)
    for tenant in (here, there):
        tenant.wait_for_grant()
        eventually(tenant.granted)
        tenant.work()
    time.sleep(0.1)
    assert here.granted()
    assert there.granted()


def test_heartbeat_advances(arbiter: Arbiter, tmp_path: Path) -> None:
    used, unused = tenant_of(arbiter, tmp_path / "a"), Tenant(tmp_path / "b")
    arbiter.add(unused)
    before = [tenant.control_field("heartbeat") for tenant in (used, unused)]
    deadline = time.monotonic() + 30
    while (beats := unused.control_field("heartbeat") - before[1]) < 3:  # one a second
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert used.control_field("heartbeat") - before[0] >= 5 * beats


def test_arbiter_sleeps_without_demand(arbiter: Arbiter, tmp_path: Path) -> None:
    tenant_of(arbiter, tmp_path / "a")
    before = arbiter.cpu_s()
    time.sleep(2)
    assert arbiter.cpu_s() - before < 0.1


def test_invalid_orders_are_answered(arbiter: Arbiter, tmp_path: Path) -> None:
    tenant = tenant_of(arbiter, tmp_path / "a")
    for line in ("sing", f"correct {tenant.path} 7 5", f"correct {tenant.path} 0 x", "add " + "/x" * 5000):
        told = len(arbiter.warnings())
        arbiter.tell(line)
        eventually(lambda before=told: len(arbiter.warnings()) == before + 1)
    arbiter.tell(f"correct {tenant.path} 0 -4096")
    eventually(lambda: tenant.control_field("correction_bytes") == (1 << 64) - 4096 or True)
    eventually(lambda: (arbiter.usage(tenant) or {})["correction_bytes"] == -4096)


@pytest.mark.parametrize("spoil", ["missing", "short", "link", "magic", "pipe"])
def test_invalid_folders_are_refused(arbiter: Arbiter, tmp_path: Path, spoil: str) -> None:
    tenant = Tenant(tmp_path / "a")
    status = tenant.path / "status"
    if spoil == "short":
        os.truncate(status, 4096)
    elif spoil == "magic":
        tenant.status[0] ^= 1
    else:
        status.rename(tenant.path / "elsewhere")
    if spoil == "link":
        status.symlink_to("elsewhere")
    elif spoil == "pipe":
        os.mkfifo(status)
    arbiter.tell(f"add {tenant.path}")
    eventually(lambda: any("status file" in warning for warning in arbiter.warnings()))
    assert not (tenant.path / "bell").exists()


def test_duplicate_gpu_in_a_lease_counts_once(arbiter: Arbiter, tmp_path: Path) -> None:
    twice = LeaseFolder(tmp_path / "a", [LeasedGpu(bytes([1] * 16), 1 << 30, policy=1)] * 2, "/nonexistent")
    arbiter.add(twice)
    assert any("the same" in warning for warning in arbiter.warnings())


def test_paths_may_be_long_with_special_characters(arbiter: Arbiter, tmp_path: Path) -> None:
    tenant = tenant_of(arbiter, tmp_path / "x y" / ("long" * 40) / 'quo"te')
    tenant.wait_for_grant()
    eventually(tenant.granted)
    assert (tenant.path / "bell").stat().st_mode & 0o777 == (tenant.path / "status").stat().st_mode & 0o666
