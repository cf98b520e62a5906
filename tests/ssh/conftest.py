from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))

from e2e_pool import fresh_pool
from ssh_pool import SshPool

from requires import require
from shared_pools import SharedPools


@contextmanager
def pool_with_dev() -> Iterator[SshPool]:
    with fresh_pool("1xT4") as pool:
        made = SshPool(pool)
        made.begin_workload("dev")
        yield made


@pytest.fixture(scope="module")
def ssh_pool(shared_pools: SharedPools) -> Iterator[SshPool]:
    """Yield a pool with a running workload called dev, and the settings of ssh for it."""
    require("ssh", "asyncssh")
    with shared_pools.use("ssh", pool_with_dev) as made:
        yield made
