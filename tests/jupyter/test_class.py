"""A class: fifty kernels of 2 % each on one GPU, and one more."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from e2e_pool import RealPool
from kernels import Kernel, becomes, kernel_on_slices, running_kernel

KERNELS = 50
AT_A_TIME = 4  # programs that import at once on a small machine
REQUEST = {"gpus": {"fraction": 0.02}, "wait": "30m"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_kernels_share_a_gpu_and_the_next_waits(pool: RealPool) -> None:
    async def use(name: str) -> None:
        turns = asyncio.Semaphore(AT_A_TIME)
        async with AsyncExitStack() as stack:

            async def start() -> Kernel:
                async with turns:
                    return await stack.enter_async_context(running_kernel(name))

            # The pool has two GPUs; a workload holds the other.
            kernels = await asyncio.gather(*(start() for _ in range(KERNELS)))
            assert sorted(pool.free_permille()) == [0, 0]
            assert [await kernel.run(f"x = {n}; print(x)") for n, kernel in enumerate(kernels)] == [
                f"{n}\n" for n in range(KERNELS)
            ]
            late = Kernel(name)
            starting = asyncio.create_task(late.start())
            await becomes(lambda: late.has_logged("waits: "))
            assert not starting.done()
            await kernels[0].manager.shutdown_kernel(now=True)
            await starting
            assert await late.run("print('late')") == "late\n"
            assert await kernels[1].run("print(x)") == "1\n"
            late.disconnect()
            await late.manager.shutdown_kernel(now=True)

    pool("submit", "holder", "-g", "1", "--", "sleep", "100000")
    assert pool.becomes("holder", "running")
    with kernel_on_slices("fiftieth", REQUEST) as name:
        asyncio.run(use(name))
    pool("stop", "holder")
    assert pool.all_free()
