from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "node"))
sys.path.insert(0, str(Path(__file__).parent.parent / "api"))

from live_pool import LivePool, end_everything, live_pool

from gpupool import Client
from shared_pools import SharedPools


@pytest.fixture(scope="module")
def live(shared_pools: SharedPools) -> Iterator[LivePool]:
    """Yield a pool for all tests of this folder that do not harm it."""
    with shared_pools.use("client", live_pool) as made:
        yield made


@pytest.fixture
def client(live: LivePool) -> Iterator[Client]:
    """Return the owner's client on the unix socket."""
    with Client(live.socket) as made:
        yield made
    with live.http() as http:
        end_everything(http)
