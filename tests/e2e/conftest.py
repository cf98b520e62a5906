from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e_pool import RealPool, fresh_pool


@pytest.fixture(scope="session")
def shared_pool() -> Iterator[RealPool]:
    with fresh_pool("2xT4", executed=True) as made:
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
