"""Kernels of R on slices: IRkernel, local and through a tunnel."""

from __future__ import annotations

import asyncio
import signal

import pytest
from e2e_pool import RealPool
from kernels import Kernel, becomes, kernel_on_slices, running_kernel

pytestmark = pytest.mark.needs("r-kernel")


async def interrupted(kernel: Kernel) -> str:
    """Interrupt code that sleeps, and return the status of its reply."""
    printing = asyncio.Event()
    running = asyncio.create_task(kernel.run('cat("asleep\\n"); Sys.sleep(600)', printing))
    await printing.wait()
    while not running.done():
        await kernel.manager.interrupt_kernel()
        await asyncio.wait([running], timeout=1)
    return await running


@pytest.mark.parametrize("transport", ["ipc", "tunnel", "tcp"])
def test_r_kernel_runs_interrupts_and_restarts_on_its_slice(pool: RealPool, transport: str) -> None:
    async def use(name: str) -> None:
        async with running_kernel(name) as kernel:
            assert await kernel.run('cat(Sys.getenv("GPUPOOL_GPU_SHARE"))') == "0.10"
            assert await kernel.run("x <- 41; cat(nchar(strrep('y', 5000000)))") == "5000000"
            assert len(await kernel.run("cat(strrep('y', 2000000))")) == 2_000_000
            assert await kernel.ask('name <- readline("who? ")', "Ada") == "ok"
            assert await kernel.run("cat(name)") == "Ada"
            assert await interrupted(kernel) == "abort"
            assert await kernel.run("cat(x + 1)") == "42"

            workload = kernel.workload
            await kernel.manager.restart_kernel()
            await kernel.connect()
            assert await kernel.run('cat(exists("x"))') == "FALSE"
            assert kernel.workload == workload
        assert pool.all_free()

    with kernel_on_slices("r-tenth", language="r", transport=transport) as name:
        asyncio.run(use(name))


def test_killed_r_kernel_is_dead(pool: RealPool) -> None:
    async def use(name: str) -> None:
        async with running_kernel(name) as kernel:
            await kernel.manager.signal_kernel(signal.SIGKILL)
            await becomes(kernel.dead)

    with kernel_on_slices("r-tenth", language="r") as name:
        asyncio.run(use(name))
    assert pool.all_free()


def test_r_kernel_is_added_after_a_check(pool: RealPool) -> None:
    pool("jupyter", "kernel", "add", "0.1", "--language", "R")
    listed = pool.json("jupyter", "kernel", "list")
    assert [(kernel["name"], kernel["language"]) for kernel in listed] == [("gpupool-r-0.1", "R")]
    pool("jupyter", "kernel", "remove", "gpupool-r-0.1")
