from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))

from e2e_pool import fresh_pool
from ssh_pool import SshPool

from requires import require


@pytest.fixture(scope="session")
def ssh_pool() -> Iterator[SshPool]:
    """Yield a pool with a running workload called dev, and the settings of ssh for it."""
    require("ssh", "asyncssh")
    with fresh_pool("1xT4") as pool:
        made = SshPool(pool)
        made.begin_workload("dev")
        yield made
