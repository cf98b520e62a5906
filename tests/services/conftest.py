from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from pool_world import World, world_in


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Yield two GPUs and one control plane whose clock stands still."""
    with world_in(tmp_path) as made:
        yield made
