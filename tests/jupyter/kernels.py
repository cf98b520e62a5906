"""Real kernels of jupyter_client on a real pool."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e_pool import PATIENCE_S, RealPool
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from gpupool.jupyter import kernel_spec

TENTH: dict[str, Any] = {"gpus": {"fraction": 0.1}}


def use(pool: RealPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put this process into the environment of the pool's user."""
    for name in ("GPUPOOL_URL", "GPUPOOL_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in pool.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(pool.work)


@contextmanager
def kernel_on_slices(
    name: str, request: Mapping[str, Any] = TENTH, *, language: str = "python", **settings: Any
) -> Iterator[str]:
    """Add a kernel specification; ``settings`` are of the provisioner. One with an image is not checked."""
    program = kernel_spec.find_program(language, not_here="image" in request)
    spec = kernel_spec.add(name, name, program, request)
    if settings:
        content = json.loads((spec.folder / "kernel.json").read_text())
        content["metadata"]["kernel_provisioner"]["config"] |= settings
        (spec.folder / "kernel.json").write_text(json.dumps(content))
    try:
        yield spec.name
    finally:
        shutil.rmtree(spec.folder)


async def becomes(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait until a condition is true; the time only bounds a failing test."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.05)


class Kernel:
    """A kernel manager with a client. ``log`` has what it logged."""

    def __init__(self, name: str) -> None:
        self.log: list[str] = []
        logger = logging.Logger("kernel")  # noqa: LOG001 - not shared with other kernels
        handler = logging.Handler()
        handler.emit = lambda record: self.log.append(record.getMessage())  # type: ignore[method-assign]
        logger.addHandler(handler)
        self.manager = AsyncKernelManager(kernel_name=name, log=logger, shutdown_wait_time=PATIENCE_S)
        self.client: AsyncKernelClient | None = None

    async def start(self, **options: Any) -> None:
        await self.manager.start_kernel(**options)
        await self.connect()

    async def connect(self) -> None:
        self.disconnect()
        self.client = self.manager.client()
        assert isinstance(self.client, AsyncKernelClient)
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=PATIENCE_S)

    def disconnect(self) -> None:
        if self.client is not None:
            self.client.stop_channels()

    async def run(self, code: str, printing: asyncio.Event | None = None) -> str:
        """Return what the code prints, or the name of its exception (R: the status). ``printing``: set at an output."""
        assert self.client is not None
        printed: list[str] = []

        def collect(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
                if printing is not None:
                    printing.set()

        reply = await self.client.execute_interactive(code, timeout=PATIENCE_S, output_hook=collect)
        content = reply["content"]
        return "".join(printed) if content["status"] == "ok" else content.get("ename", content["status"])

    async def interrupted(self) -> str:
        """Interrupt code that sleeps, and return the name of its exception.

        ipykernel loses a request if a signal arrives just before its code, hence the wait for the code.
        """
        asleep = asyncio.Event()
        running = asyncio.create_task(self.run("print('asleep', flush=True); import time; time.sleep(600)", asleep))
        async with asyncio.timeout(PATIENCE_S):
            await asleep.wait()
        while not running.done():
            await self.manager.interrupt_kernel()
            await asyncio.wait([running], timeout=1)
        return await running

    async def ask(self, code: str, answer: str) -> str:
        """Run code that asks for input, answer, and return the status of the reply."""
        client = self.client
        assert client is not None

        def say(_message: dict[str, Any]) -> None:
            client.input(answer)

        reply = await client.execute_interactive(code, allow_stdin=True, stdin_hook=say, timeout=PATIENCE_S)
        return str(reply["content"]["status"])

    async def dead(self) -> bool:
        return not await self.manager.is_alive()

    async def has_logged(self, text: str) -> bool:
        return any(text in line for line in self.log)

    @property
    def workload(self) -> str:
        return str(self.manager.provisioner._record.workload)

    @property
    def folder(self) -> Path:
        return Path(self.manager.provisioner._folder.path)


@asynccontextmanager
async def running_kernel(name: str, **options: Any) -> AsyncIterator[Kernel]:
    kernel = Kernel(name)
    try:
        await kernel.start(**options)
        yield kernel
    finally:
        kernel.disconnect()
        await kernel.manager.shutdown_kernel(now=True)
