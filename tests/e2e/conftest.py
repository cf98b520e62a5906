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
    """Two free emulated GPUs; what a test leaves running is stopped, its projects are deleted."""
    yield shared_pool
    shared_pool.clear()
    shared_pool.delete_projects()


@pytest.fixture
def own_pool() -> Iterator[RealPool]:
    """A pool that a test may harm."""
    with fresh_pool("1xT4") as made:
        yield made


@pytest.fixture
def new_pool() -> Iterator[RealPool]:
    """Two free emulated GPUs and no past: for what is foretold or played again from it."""
    with fresh_pool("2xT4") as made:
        yield made
