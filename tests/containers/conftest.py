from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[1] / name) for name in ("node", "e2e", "ssh", "jupyter")]

from container_images import store_with_image
from node_harness import Node, fresh_node


@pytest.fixture(scope="session")
def container_store() -> Iterator[Path]:
    """Yield the store that most of these tests share."""
    with store_with_image() as folder:
        yield folder


@pytest.fixture(scope="module")
def node(container_store: Path) -> Iterator[Node]:
    """Yield an agent for all tests of a module that do not harm it."""
    with fresh_node() as made:
        yield made
