from __future__ import annotations

from collections.abc import Iterator

import pytest
from node_harness import Node, fresh_node


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Yield one agent for all tests of a module that do not harm it."""
    with fresh_node() as made:
        yield made


@pytest.fixture
def own_node() -> Iterator[Node]:
    """Yield an agent that a test may kill."""
    with fresh_node() as made:
        yield made
