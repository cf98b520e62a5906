"""The thread that calls the GPU driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gpupool.domain.errors import ErrorCode, GpupoolError

DRIVER_TIMEOUT_S = 20.0
T = TypeVar("T")


class DriverThread:
    """Runs calls of the GPU driver one after the other, in a thread: the driver may hang, the agent must not."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "driver")

    async def ask(self, question: Callable[[], T]) -> T:
        """Run a call and return its result. Raises NODE_UNREACHABLE if it takes too long."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DRIVER_TIMEOUT_S):
                return await loop.run_in_executor(self._thread, question)
        except TimeoutError as error:
            raise GpupoolError(
                ErrorCode.NODE_UNREACHABLE,
                f"The GPU driver did not answer within {DRIVER_TIMEOUT_S:.0f} seconds.",
                "Run nvidia-smi on the node; if it hangs too, the machine needs a restart.",
            ) from error

    def close(self) -> None:
        """Accept no more calls; a call that hangs is abandoned."""
        self._thread.shutdown(wait=False, cancel_futures=True)
