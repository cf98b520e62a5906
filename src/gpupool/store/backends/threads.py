"""The threads that read and write a database, so that the event loop never waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Engine

from gpupool.domain.errors import ErrorCode, GpupoolError

T = TypeVar("T")


class DatabaseThreads:
    """One writer thread and a few reader threads, each group with its own engine."""

    def __init__(self, writer: Engine, readers: Engine, how_many_readers: int) -> None:
        self.writer, self.readers = writer, readers
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._read_threads = ThreadPoolExecutor(how_many_readers, thread_name_prefix="store-read")
        self._closed = False

    async def write(self, work: Callable[[], T]) -> T:
        """Run the work after all earlier writes; return its result or raise its error."""
        return await self._on(self._write_thread, work)

    async def read(self, work: Callable[[], T]) -> T:
        """Run reading work, several at a time; return its result or raise its error."""
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
        """Finish running work and close the engines; safe to repeat."""
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._read_threads.shutdown()
        self._write_thread.shutdown()
        self.readers.dispose()
        self.writer.dispose()
