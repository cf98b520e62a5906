from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "node"))

from live_pool import LivePool, end_everything, live_pool

from shared_pools import SharedPools


@pytest.fixture(scope="module")
def pool(shared_pools: SharedPools) -> Iterator[LivePool]:
    """Yield a pool for all tests of this folder that do not harm it."""
    with shared_pools.use("api", live_pool) as made:
        yield made


@pytest.fixture
def new_http() -> Iterator[httpx2.Client]:
    """Yield the owner's client of a pool without history, for estimates."""
    with live_pool() as made, made.http() as client:
        yield client


@pytest.fixture
def http(pool: LivePool) -> Iterator[httpx2.Client]:
    """Return the owner's client on the unix socket."""
    with pool.http() as client:
        yield client
        end_everything(client)
