from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))

from attackers import Scene, scene_of_attacks

from shared_pools import SharedPools


@pytest.fixture(scope="module")
def shared_scene(shared_pools: SharedPools) -> Iterator[Scene]:
    with shared_pools.use("adversary", scene_of_attacks) as made:
        yield made


@pytest.fixture
def scene(shared_scene: Scene) -> Iterator[Scene]:
    """Yield a pool; check after each test that it is healthy, and that its log and memory have stayed small."""
    log, memory = shared_scene.log_bytes(), shared_scene.memory_mib()
    yield shared_scene
    shared_scene.assert_everybody_is_answered()
    assert shared_scene.log_bytes() - log < 64 * 1024
    assert shared_scene.memory_mib() - memory < 150
    assert b"Traceback" not in shared_scene.log_since(log)
