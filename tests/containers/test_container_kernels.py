"""Jupyter kernels in images: ipykernel in a Podman container on a slice."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_images import add_python, import_image, make_tree
from container_pools import container_pool
from e2e_pool import RealPool
from kernels import TENTH, Kernel, becomes, kernel_on_slices, running_kernel, use

from gpupool.jupyter.provisioner import KernelStartError


@pytest.fixture(scope="module")
def pool_with_image(container_store: Path) -> Iterator[RealPool]:
    """Yield a pool whose store has the image ``python:1`` with ipykernel."""
    tree = container_store / "python"
    make_tree(tree)
    add_python(tree, "ipykernel")
    import_image(container_store / "store", tree, "localhost/python:1", "ENV=PYTHONPATH=/packages")
    shutil.rmtree(tree)

    def prepare(made: RealPool) -> None:
        for name in ("DATA", "RUNTIME", "CONFIG"):
            made.env[f"JUPYTER_{name}_DIR"] = str(made.home / name.lower())

    with container_pool(container_store, prepare) as made:
        yield made


@pytest.fixture
def pool(pool_with_image: RealPool, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealPool]:
    use(pool_with_image, monkeypatch)
    yield pool_with_image
    pool_with_image.clear()


@pytest.mark.parametrize("transport", ["ipc", "tunnel"])
def test_kernel_in_an_image_runs_interrupts_and_restarts(pool: RealPool, transport: str) -> None:
    async def use_kernel(name: str) -> None:
        async with running_kernel(name) as kernel:
            assert await kernel.run("import ipykernel; print(ipykernel.__file__.split('/')[1])") == "packages\n"
            assert await kernel.run("import os; print(os.environ['GPUPOOL_GPU_SHARE'])") == "0.10\n"
            assert await kernel.run("open('made', 'w').write('in the image'); x = 41; print(x)") == "41\n"
            assert (pool.work / "made").read_text() == "in the image"
            assert await kernel.ask("name = input('who? ')", "Ada") == "ok"
            assert await kernel.interrupted() == "KeyboardInterrupt"
            assert await kernel.run("print(name, x + 1)") == "Ada 42\n"
            workload = kernel.workload
            await kernel.manager.restart_kernel()
            await kernel.connect()
            assert await kernel.run("print('x' in globals())") == "False\n"
            assert kernel.workload == workload
            await kernel.manager.shutdown_kernel(now=True)
        assert pool.all_free()

    with kernel_on_slices("boxed", {**TENTH, "image": "python:1"}, transport=transport) as name:
        asyncio.run(use_kernel(name))


def test_missing_image_of_a_kernel_is_named(pool: RealPool) -> None:
    async def use_kernel(name: str) -> None:
        kernel = Kernel(name)
        try:
            await kernel.start()
        except KernelStartError as error:  # before it counted as running
            assert "localhost/nowhere:3" in str(error)  # noqa: PT017 - one of two outcomes
        except RuntimeError:  # Jupyter waited for its answer
            await becomes(lambda: kernel.has_logged("The kernel has no program: Could not start: "))
            assert await kernel.has_logged("localhost/nowhere:3")
        else:
            pytest.fail("The kernel runs.")
        finally:
            kernel.disconnect()
            await kernel.manager.shutdown_kernel(now=True)

    with kernel_on_slices("nowhere", {**TENTH, "image": "localhost/nowhere:3"}) as name:
        asyncio.run(use_kernel(name))
    assert pool.all_free()
