from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from requires import require

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("e2e", "store", "ray")]

from ray_machines import Cluster, cluster  # noqa: E402 - found by the line above


@pytest.fixture(scope="session")
def needed() -> None:
    """Skip without what machines in network namespaces with a Ray each need."""
    require("ray", "netns")


@pytest.fixture(scope="module")
def machines(needed: None) -> Iterator[Cluster]:
    """Yield a head and nodes (one, or GPUPOOL_TEST_NODES), each in a network namespace with its own Ray."""
    with cluster(int(os.environ.get("GPUPOOL_TEST_NODES", "1"))) as made:
        yield made
