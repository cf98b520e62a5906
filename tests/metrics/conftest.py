from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))

from prometheus_server import Scraped, scraped

from shared_pools import SharedPools


@pytest.fixture(scope="module")
def monitored(shared_pools: SharedPools) -> Iterator[Scraped]:
    """Yield a real pool with work of two users, and a Prometheus that has scraped it."""
    with shared_pools.use("metrics", scraped) as made:
        yield made
