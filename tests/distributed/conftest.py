from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent.parent / room) for room in ("node", "e2e", "machines")]

from apart import machines_apart  # noqa: E402 - what it imports is found by the line above
from machines_harness import Machines  # noqa: E402 - from the path that was added above

from shared_pools import SharedPools  # noqa: E402 - after the imports from the path that was added above


@pytest.fixture(scope="module")
def four(shared_pools: SharedPools) -> Iterator[Machines]:
    """Yield four nodes with a GPU each."""
    with shared_pools.use("distributed", lambda: machines_apart(4, "1xT4")) as made:
        yield made


@pytest.fixture
def pool(four: Machines) -> Iterator[Machines]:
    """Return four free nodes; stop afterwards what a test leaves running."""
    yield four
    four.heal()
    four.clear()
