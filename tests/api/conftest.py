from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "node"))

from live_pool import LivePool, end_everything, live_pool


@pytest.fixture(scope="session")
def pool() -> Iterator[LivePool]:
    """One pool for all tests of the room that do not harm it."""
    with live_pool() as made:
        yield made


@pytest.fixture
def new_http() -> Iterator[httpx2.Client]:
    """The owner of a pool without a past: for what is foretold from it."""
    with live_pool() as made, made.http() as client:
        yield client


@pytest.fixture
def http(pool: LivePool) -> Iterator[httpx2.Client]:
    """The owner on the unix socket."""
    with pool.http() as client:
        yield client
        end_everything(client)
