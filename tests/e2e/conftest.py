from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e_pool import RealPool, fresh_pool

from shared_pools import SharedPools


@pytest.fixture(scope="module")
def shared_pool(shared_pools: SharedPools) -> Iterator[RealPool]:
    with shared_pools.use("e2e", lambda: fresh_pool("2xT4", executed=True)) as made:
        yield made


@pytest.fixture
def pool(shared_pool: RealPool) -> Iterator[RealPool]:
    """Yield a pool with two free emulated GPUs; stop afterwards what a test leaves running, and delete its projects."""
    yield shared_pool
    shared_pool.clear()
    shared_pool.delete_projects()


@pytest.fixture
def own_pool() -> Iterator[RealPool]:
    """Yield a pool that a test may harm."""
    with fresh_pool("1xT4") as made:
        yield made


@pytest.fixture
def new_pool() -> Iterator[RealPool]:
    """Yield a pool with two free emulated GPUs and no history, for estimates and simulations from it."""
    with fresh_pool("2xT4") as made:
        yield made
