"""Kernels in a project with a limit, and kernels whose GPUs the pool gives to others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from e2e_pool import RealPool
from kernels import TENTH, Kernel, becomes, kernel_on_slices, running_kernel

from gpupool.jupyter.provisioner import KernelStartError


@pytest.fixture
def small(pool: RealPool) -> Iterator[str]:
    """Yield a project that may hold a tenth of a GPU."""
    pool("project", "create", "small", "--quota", "0.1", "--limit", "0.1")
    yield "small"
    pool.clear()
    pool.delete_projects()


def live(pool: RealPool) -> list[str]:
    with pool.client as client:
        return [job.id for job in client.list()]


def test_kernel_larger_than_the_limit_of_its_project_is_refused(pool: RealPool, small: str) -> None:
    with kernel_on_slices("large", {"gpus": {"fraction": 0.5}, "project": small}) as name:
        kernel = Kernel(name)
        with pytest.raises(KernelStartError) as refused:
            asyncio.run(kernel.start())
    text = str(refused.value)
    assert "[OVER_LIMIT]" in text
    assert "small" in text
    assert live(pool) == []
    assert not list((pool.home / "jupyter/gpupool/kernels").glob("*"))


def test_kernel_above_the_limit_waits_with_the_reason(pool: RealPool, small: str) -> None:
    async def use(name: str) -> None:
        async with running_kernel(name) as first:
            second = Kernel(name)
            with pytest.raises(KernelStartError) as refused:
                await second.start(env={**os.environ, "GPUPOOL_KERNEL_WAIT": "4s"})
            assert "[WAIT_EXPIRED]" in str(refused.value)
            [reason] = {line.partition(" waits: ")[2] for line in second.log if " waits: " in line}
            assert "small" in reason
            assert reason in str(refused.value)
            assert live(pool) == [first.workload]
            assert await first.run("print(6 * 7)") == "42\n"

    with kernel_on_slices("limited", {**TENTH, "project": small}) as name:
        asyncio.run(use(name))


def test_preempted_kernel_is_dead_with_the_reason_and_does_not_queue_again(pool: RealPool) -> None:
    """A preemptible kernel gives its GPUs to urgent work; its variables are lost, so only its user restarts it."""
    pool("project", "create", "shared", "--min-runtime", "1s")
    where = ("--project", "shared", "-n", "2")

    async def use(name: str) -> None:
        async with running_kernel(name) as kernel:
            await kernel.run("x = 41")
            pool("submit", "urgent", *where, "--priority", "high", "--", "sleep", "600")
            await becomes(lambda: kernel.has_logged("The pool ended this kernel"))
            [said] = [line for line in kernel.log if "The pool ended this kernel" in line]
            assert "priority 100" in said, said
            assert "[PREEMPTED]. Restart it to get a new slice." in said
            await becomes(kernel.dead)
            assert await asyncio.to_thread(pool.becomes, "urgent", "running")
            await becomes(lambda: asyncio.to_thread(lambda: len(live(pool)) == 1))
            pool("stop", "--force", "urgent")
            await kernel.manager.restart_kernel()
            await kernel.connect()
            assert await kernel.run("print('x' in globals())") == "False\n"

    with kernel_on_slices("preemptible", {"gpus": {"count": 2}, "preemptible": True, "project": "shared"}) as name:
        asyncio.run(use(name))
    pool.clear()
    pool.delete_projects()
