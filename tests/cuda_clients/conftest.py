"""Programs of NVIDIA's runtime and of libraries on it, without changes, on the emulated GPUs of a pool."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))

from cuda_toolkit import Toolkit
from e2e_pool import RealPool, fresh_pool

from cuda_clients import Table
from shared_pools import SharedPools


@pytest.fixture(scope="module")
def shared_pool(shared_pools: SharedPools) -> Iterator[RealPool]:
    with shared_pools.use("cuda_clients", lambda: fresh_pool("1xT4")) as made:
        yield made


@pytest.fixture
def pool(shared_pool: RealPool) -> Iterator[RealPool]:
    """Yield a pool with one free emulated GPU of 16 GiB."""
    yield shared_pool
    shared_pool.clear()


@pytest.fixture(scope="session")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    return Toolkit(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="session")
def table() -> Iterator[Table]:
    """Collect the clients that ran, and write them into the page that GPUPOOL_CLIENTS_TABLE names."""
    made = Table()
    yield made
    if page := os.environ.get("GPUPOOL_CLIENTS_TABLE"):
        made.write(Path(page))
