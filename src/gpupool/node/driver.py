"""The one thread in which the GPU driver is asked: it may hang, and the agent must not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gpupool.domain.errors import ErrorCode, GpupoolError

DRIVER_WAIT_S = 20.0  # nobody waits longer
T = TypeVar("T")


class DriverThread:
    """Asks one question after the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "driver")

    async def ask(self, question: Callable[[], T]) -> T:
        """The answer. Raises NODE_UNREACHABLE when there is none in time."""
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.run_in_executor(self._thread, question), DRIVER_WAIT_S)
        except TimeoutError as error:
            raise GpupoolError(
                ErrorCode.NODE_UNREACHABLE,
                f"The GPU driver did not answer within {DRIVER_WAIT_S:.0f} seconds.",
                "Run nvidia-smi on the node; if it hangs too, the machine needs a restart.",
            ) from error

    def close(self) -> None:
        """Ask no more; a question that hangs is left behind."""
        self._thread.shutdown(wait=False, cancel_futures=True)
