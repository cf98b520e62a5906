"""A real pool whose containers and images are in the store of these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e_pool import RealPool, folder_for_pool


@contextmanager
def container_pool(container_store: Path, prepare: Callable[[RealPool], None] | None = None) -> Iterator[RealPool]:
    """Start a pool with one emulated T4; ``prepare`` may change its environment before."""
    with folder_for_pool() as folder:
        pool = RealPool(folder, "1xT4")
        pool.env["GPUPOOL_CONTAINER_STORE"] = str(container_store / "store")
        if prepare is not None:
            prepare(pool)
        pool.up()
        try:
            yield pool
        finally:
            pool.down("--stop-jobs")
