from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from e2e_pool import fresh_pool
from remote_world import STUDENT, Head, Laptop

from free_ports import free_port
from shared_pools import SharedPools


@contextmanager
def pool_with_students() -> Iterator[Head]:
    """Start a pool on the network; where accounts can be changed, two users have one each."""
    port = free_port()
    with fresh_pool("2xT4", "--listen", f"127.0.0.1:{port}", "--tls-self-signed") as pool:
        if os.geteuid() == 0:
            for name, uid in (("ada", STUDENT), ("grace", STUDENT + 1)):
                pool("user", "set", name, "--uid", str(uid))
        yield Head(pool, f"127.0.0.1:{port}")


@pytest.fixture(scope="module")
def head(shared_pools: SharedPools) -> Iterator[Head]:
    with shared_pools.use("remote", pool_with_students) as made:
        yield made


@pytest.fixture
def laptop(head: Head, tmp_path: Path) -> Laptop:
    """Yield a machine that is logged in as the pool's owner."""
    return head.laptop(tmp_path / "laptop", head.token())


@pytest.fixture
def ada(head: Head, tmp_path: Path) -> Laptop:
    return head.laptop(tmp_path / "ada", head.token("ada"))


@pytest.fixture
def grace(head: Head, tmp_path: Path) -> Laptop:
    return head.laptop(tmp_path / "grace", head.token("grace"))
