from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("e2e", "store", "ray")]

from ray_machines import Cluster, cluster  # noqa: E402 - found by the line above

MISSING = [
    *(["Ray"] if find_spec("ray") is None else []),
    *(["root, for network namespaces"] if os.geteuid() else []),
    *(["the command ip (iproute2)"] if shutil.which("ip") is None else []),
]


@pytest.fixture(scope="session")
def needed() -> None:
    """Skip, or fail where that must not be, without what machines in network namespaces need."""
    if MISSING:
        reason = f"needs {', '.join(MISSING)}"
        if os.environ.get("CI_REQUIRES_ALL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="module")
def machines(needed: None) -> Iterator[Cluster]:
    """A head and nodes (one, or GPUPOOL_TEST_NODES), each in a network namespace with a Ray of its own."""
    with cluster(int(os.environ.get("GPUPOOL_TEST_NODES", "1"))) as made:
        yield made
