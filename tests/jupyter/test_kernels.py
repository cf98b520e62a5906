"""Kernels on slices, through jupyter_client as nbclient, papermill and Jupyter Server use it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_pool import RealPool, eventually, fresh_pool
from jupyter_client.manager import AsyncKernelManager
from kernels import Kernel, becomes, kernel_on_slices, running_kernel

from gpupool.client.transport.connection import ApiCall, PoolConnection
from gpupool.client.transport.http import Answer
from gpupool.jupyter.provisioner import KernelStartError
from gpupool.node.host.native import missing


@pytest.fixture
def tenth(pool: RealPool) -> Iterator[str]:
    with kernel_on_slices("tenth") as name:
        yield name


def live_workloads(pool: RealPool) -> list[str]:
    with pool.client as client:
        return [job.id for job in client.list()]


def kernel_waits(pool: RealPool) -> bool:
    with pool.client as client:
        return any(job.name.startswith("kernel-python-") and job.view.state == "queued" for job in client.list())


def test_kernel_runs_interrupts_and_restarts_on_its_slice(pool: RealPool, tenth: str) -> None:
    async def use() -> None:
        async with running_kernel(tenth) as kernel:
            with pool.client as client:
                view = client.get(kernel.workload).view
            assert view.kind == "interactive"
            assert view.labels["jupyter-kernel"] == kernel.manager.kernel_id
            assert await kernel.run("import os; print(os.environ['GPUPOOL_GPU_SHARE'])") == "0.10\n"
            assert await kernel.run("x = 41; print(len('y' * 10**7))") == "10000000\n"
            assert len(await kernel.run("print('y' * 5_000_000)")) == 5_000_001
            first = kernel.workload

            assert await kernel.interrupted() == "KeyboardInterrupt"
            assert await kernel.run("print(x + 1)") == "42\n"

            for now in (False, True):
                await kernel.manager.restart_kernel(now=now)
                await kernel.connect()
                assert await kernel.run("print('x' in dir())") == "False\n"
                assert kernel.workload == first
            assert live_workloads(pool) == [first]
            with pool.client as client:
                assert client.detail(first).replicas[0].attempt == 3

            kernel.disconnect()
            folder = kernel.folder
            await kernel.manager.shutdown_kernel()
            assert pool.state_of(first) == "succeeded", "it ended by itself, as asked by Jupyter"
            assert not folder.exists()

    asyncio.run(use())
    assert pool.all_free()


def test_restart_keeps_gpu_in_full_pool(pool: RealPool) -> None:
    async def use() -> None:
        with kernel_on_slices("whole", {"gpus": {"count": 2}}) as name:
            async with running_kernel(name) as kernel:
                pool("submit", "rival", "-n", "2", "--priority", "high", "--", "true")
                await kernel.manager.restart_kernel()
                await kernel.connect()
                assert await kernel.run("print(1)") == "1\n"
                assert pool.state_of("rival") == "queued"

    asyncio.run(use())
    assert pool.becomes("rival", "succeeded")


def test_input_is_answered(pool: RealPool, tenth: str) -> None:
    async def use() -> None:
        async with running_kernel(tenth) as kernel:
            assert await kernel.ask("name = input('who? ')", "Ada") == "ok"
            assert await kernel.run("print(name)") == "Ada\n"

    asyncio.run(use())


def test_environment_has_no_secrets_and_overrides_size(
    pool: RealPool, tenth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("JPY_PARENT_PID", "JUPYTER_TOKEN", "JUPYTERHUB_API_TOKEN", "COURSE"):
        monkeypatch.setenv(name, "77")
    env = {**os.environ, "GPUPOOL_KERNEL_MEMORY": "2G"}

    async def use() -> None:
        async with running_kernel(tenth, env=env) as kernel:
            code = (
                "import os; print(sorted(n for n in os.environ if n.startswith(('JPY', 'JUPYTER')) or n == 'COURSE'))"
            )
            seen = await kernel.run(code)
            assert seen == "['COURSE', 'JUPYTER_CONFIG_DIR', 'JUPYTER_DATA_DIR', 'JUPYTER_RUNTIME_DIR']\n"
            assert await kernel.run("print(os.environ['GPUPOOL_GPU_MEMORY_MIB'])") == "2048\n"

    asyncio.run(use())


def test_connection_is_private_and_key_is_shown_nowhere(pool: RealPool, tenth: str) -> None:
    async def use() -> None:
        async with running_kernel(tenth) as kernel:
            connection = json.loads((kernel.folder / "connection.json").read_text())
            assert connection["transport"] == "ipc"
            pid = int(await kernel.run("import os; print(os.getpid())"))
            said = [Path(f"/proc/{pid}/{file}").read_text() for file in ("cmdline", "environ")]  # noqa: ASYNC240
            with pool.client as client:
                stored = client.detail(kernel.workload).model_dump_json() + client.get(kernel.workload).output()
            for text in [*said, *kernel.log, stored]:
                assert connection["key"] not in text
            assert kernel.folder.stat().st_mode & 0o777 == 0o700
            files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in kernel.folder.iterdir() if path.is_file()}
            assert files == {"connection.json": 0o600, "kernel.json": 0o600, "lock": 0o600}
            assert connection["key"] not in (kernel.folder / "kernel.json").read_text()

    asyncio.run(use())


def test_long_path_of_home_is_no_obstacle(pool: RealPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(pool.home / ("long" * 30)))

    async def use() -> None:
        with kernel_on_slices("deep") as name:
            async with running_kernel(name) as kernel:
                assert await kernel.run("print(1)") == "1\n"
                sockets = Path(kernel.manager.ip).parent
                assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
            assert not sockets.exists()

    asyncio.run(use())


def test_tcp_is_encrypted(pool: RealPool) -> None:
    async def use() -> None:
        with kernel_on_slices("tcp", transport="tcp") as name:
            async with running_kernel(name) as kernel:
                connection = json.loads((kernel.folder / "connection.json").read_text())
                assert connection["transport"] == "tcp"
                assert connection["curve_secretkey"]
                assert await kernel.run("print(1)") == "1\n"

    asyncio.run(use())


def test_kernel_at_rest_makes_no_requests(pool: RealPool, tenth: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    send = PoolConnection.send

    def count(self: PoolConnection, call: ApiCall) -> Answer:
        sent.append(call.path)
        return send(self, call)

    async def use() -> None:
        async with running_kernel(tenth) as first, running_kernel(tenth) as second:
            with pool.client as client:
                newest = next(client.events(newest=1)).id
            monkeypatch.setattr(PoolConnection, "send", count)
            for _ in range(50):
                assert await first.manager.is_alive()
                assert await second.manager.is_alive()
            monkeypatch.setattr(PoolConnection, "send", send)
            with pool.client as client:
                assert next(client.events(newest=1)).id == newest, "nothing happened"

    asyncio.run(use())
    assert sent == []


@pytest.mark.parametrize(("how", "status"), [("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
def test_kernel_that_dies_is_noticed_with_its_status(pool: RealPool, tenth: str, how: str, status: int) -> None:
    async def use() -> None:
        async with running_kernel(tenth) as kernel:
            assert kernel.client is not None
            kernel.client.execute(f"import os; os.write(2, b'last words\\n'); {how}")
            await becomes(kernel.dead)
            assert await kernel.manager.provisioner.poll() == status
            await becomes(lambda: kernel.has_logged("last words"))

    asyncio.run(use())


def test_wait_in_full_pool_shows_reason_and_ends_with_it(pool: RealPool, tenth: str) -> None:
    pool("submit", "hog", "-n", "2", "--", "sleep", "600")
    assert pool.becomes("hog", "running")
    kernel = Kernel(tenth)
    with pytest.raises(KernelStartError) as refused:
        asyncio.run(kernel.start(env={**os.environ, "GPUPOOL_KERNEL_WAIT": "4s"}))
    text = str(refused.value)
    assert "did not start" in text
    assert "[WAIT_EXPIRED]" in text
    reasons = [line for line in kernel.log if " waits: " in line]
    assert reasons
    assert reasons[0].partition(" waits: ")[2] in text
    assert "%%" not in text
    assert live_workloads(pool) == [pool.json("describe", "hog")["id"]]
    assert not list((pool.home / "jupyter/gpupool/kernels").glob("*"))


def test_cancelled_wait_leaves_nothing_in_queue(pool: RealPool, tenth: str) -> None:
    pool("submit", "hog", "-n", "2", "--", "sleep", "600")
    assert pool.becomes("hog", "running")
    manager = AsyncKernelManager(kernel_name=tenth)

    async def cancel() -> None:
        starting = asyncio.create_task(manager.start_kernel())
        await becomes(lambda: asyncio.to_thread(kernel_waits, pool))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(cancel())
    assert eventually(lambda: len(live_workloads(pool)) == 1)
    assert not list((pool.home / "jupyter/gpupool/kernels").glob("*"))


def test_wait_ended_by_stop_says_so(pool: RealPool, tenth: str) -> None:
    pool("submit", "hog", "-n", "2", "--", "sleep", "600")
    assert pool.becomes("hog", "running")
    manager = AsyncKernelManager(kernel_name=tenth)

    async def stop() -> None:
        starting = asyncio.create_task(manager.start_kernel())
        await becomes(lambda: asyncio.to_thread(kernel_waits, pool))
        with pool.client as client:
            client.stop(next(job.id for job in client.list() if job.name.startswith("kernel-python-")))
        with pytest.raises(KernelStartError, match=r"\[STOPPED_BY_USER\]"):
            await starting

    asyncio.run(stop())


def test_missing_pool_is_reported(pool: RealPool, tenth: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPOOL_STATE_DIR", str(pool.folder / "nowhere"))
    monkeypatch.delenv("GPUPOOL_RUN_DIR")
    with pytest.raises(KernelStartError, match=r"\[POOL_UNREACHABLE\]\n  Start one with 'gpupool up"):
        asyncio.run(Kernel(tenth).start())


def test_restart_of_pool_disturbs_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_pool("1xT4") as own:
        for name, value in {**own.env, "JUPYTER_DATA_DIR": str(own.home / "jupyter")}.items():
            monkeypatch.setenv(name, value)

        async def use() -> None:
            with kernel_on_slices("steady") as name:
                async with running_kernel(name) as kernel:
                    await kernel.run("x = 41")
                    await asyncio.to_thread(own.kill_child, "control-plane")
                    assert await kernel.run("print(x + 1)") == "42\n"
                    assert await kernel.manager.is_alive()
                    with own.client as client:
                        client.signal(kernel.workload, signal.SIGKILL)
                    await becomes(kernel.dead)

        asyncio.run(use())


@pytest.mark.skipif(missing() is not None, reason="the native parts are not built")
def test_lazy_kernel_gets_its_slice_when_a_cell_uses_cuda(pool: RealPool) -> None:
    async def use() -> None:
        with kernel_on_slices("lazy", {"gpus": {"fraction": 0.5}, "lazy": True}) as name:
            async with running_kernel(name) as kernel:
                assert await kernel.run("print(6 * 7)") == "42\n"
                assert pool.free_permille() == [1000] * len(pool.free_permille())
                cell = "from cuda.bindings import driver as d; print(int(d.cuInit(0)[0]), d.cuDeviceGetCount()[1])"
                assert await kernel.run(cell) == "0 1\n"
                assert 500 in pool.free_permille()

    asyncio.run(use())


STORE = """
import numpy as np
from cuda.bindings import driver as d
context = d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(int(d.cuInit(0)[0]))[1])[1]
address, wanted = (d.cuCtxSetCurrent(context), d.cuMemAlloc(4096))[1][1], np.arange(1024, dtype=np.uint32)
print(int(d.cuMemcpyHtoD(address, wanted, 4096)[0]))
"""
COMPARE = """
found = np.zeros_like(wanted)
print(int(d.cuCtxSetCurrent(context)[0]), int(d.cuMemcpyDtoH(found, address, 4096)[0]), bool((found == wanted).all()))
"""


@pytest.mark.skipif(missing() is not None, reason="the native parts are not built")
def test_unused_kernel_lends_its_gpu_and_keeps_what_is_in_its_memory(pool: RealPool) -> None:
    async def all_free() -> bool:
        return set(await asyncio.to_thread(pool.free_permille)) == {1000}

    async def use() -> None:
        lends = {"gpus": {"fraction": 0.5}, "lazy": True, "return_after": "1s", "on_preempt": "suspend"}
        with kernel_on_slices("lends", lends) as name:
            async with running_kernel(name) as kernel:
                assert await kernel.run(STORE) == "0\n"
                await becomes(all_free)
                assert await kernel.run("print(6 * 7)") == "42\n"
                assert await all_free(), "cells without CUDA need no GPU"
                assert await kernel.run(COMPARE) == "0 0 True\n"
                await becomes(all_free)

    asyncio.run(use())
