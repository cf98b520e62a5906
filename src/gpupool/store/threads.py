"""The threads on which a database is read and written, so that the loop never waits for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Engine

from gpupool.domain.errors import ErrorCode, GpupoolError

T = TypeVar("T")


class DatabaseThreads:
    """One thread writes, a few read, each group with an engine of its own."""

    def __init__(self, writer: Engine, readers: Engine, how_many_readers: int) -> None:
        self.writer, self.readers = writer, readers
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._read_threads = ThreadPoolExecutor(how_many_readers, thread_name_prefix="store-read")
        self._closed = False

    async def write(self, work: Callable[[], T]) -> T:
        """What the work returns, done after all that was asked to write before. Raises what it raises."""
        return await self._on(self._write_thread, work)

    async def read(self, work: Callable[[], T]) -> T:
        """The same for what only reads; several at a time."""
        return await self._on(self._read_threads, work)

    async def _on(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if self._closed:
            raise GpupoolError(ErrorCode.INTERNAL, "The database is closed.", "Start the pool again.")
        future = asyncio.get_running_loop().run_in_executor(threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    async def close(self) -> None:
        """Finish what runs and let go; harmless when repeated."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._read_threads.shutdown()
        self._write_thread.shutdown()
        self.readers.dispose()
        self.writer.dispose()
