from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "node"))

from node_harness import Node, fresh_node


@pytest.fixture
def own_node() -> Iterator[Node]:
    """Yield an agent that a test may kill."""
    with fresh_node() as made:
        yield made
