from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "node"))
sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))
sys.path.insert(0, str(Path(__file__).parent.parent / "store"))
sys.path.insert(0, str(Path(__file__).parent.parent / "ray"))

from databases import PostgresServer, postgres_server
from machines_harness import Machines, machines

from shared_pools import SharedPools


@pytest.fixture(scope="module")
def shared_machines(shared_pools: SharedPools) -> Iterator[Machines]:
    with shared_pools.use("machines", lambda: machines(4, "1xT4", hasty=True)) as made:
        yield made


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """Yield a PostgreSQL server that tests may stop and start."""
    with postgres_server() as made:
        yield made


@pytest.fixture
def pool(shared_machines: Machines) -> Iterator[Machines]:
    """Yield four nodes with a free GPU each; stop and heal afterwards what a test leaves running or cut off."""
    shared_machines.ask("PATCH", "policy", {"node_lost_after_s": 300, "min_runtime_s": 0})
    yield shared_machines
    shared_machines.heal()
    shared_machines.clear()
