from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))
sys.path.insert(0, str(Path(__file__).parent.parent / "remote"))
sys.path.insert(0, str(Path(__file__).parent.parent / "services"))
sys.path.insert(0, str(Path(__file__).parent.parent / "machines"))
sys.path.insert(0, str(Path(__file__).parent.parent / "node"))
sys.path.insert(0, str(Path(__file__).parent.parent / "web"))

from e2e_pool import RealPool, fresh_pool
from kernels import use

from shared_pools import SharedPools


@contextmanager
def pool_for_jupyter() -> Iterator[RealPool]:
    """Start a pool whose user has folders of Jupyter of their own."""
    with fresh_pool("2xT4") as made:
        made.env["JUPYTER_DATA_DIR"] = str(made.home / "jupyter")
        made.env["JUPYTER_RUNTIME_DIR"] = str(made.home / "runtime")
        made.env["JUPYTER_CONFIG_DIR"] = str(made.home / "config")
        made.env["IPYTHONDIR"] = str(made.home / "ipython")
        yield made


@pytest.fixture(scope="module")
def shared_pool(shared_pools: SharedPools) -> Iterator[RealPool]:
    with shared_pools.use("jupyter", pool_for_jupyter) as made:
        yield made


@pytest.fixture
def pool(shared_pool: RealPool, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealPool]:
    """Yield two free emulated GPUs, with this process in their user's environment; kernels of killed servers end."""
    use(shared_pool, monkeypatch)
    yield shared_pool
    shared_pool.clear()
    shutil.rmtree(shared_pool.home / "jupyter/gpupool/kernels", ignore_errors=True)


@pytest.fixture
def own_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealPool]:
    """Yield a pool that a test may harm, with this process in the environment of its user."""
    with pool_for_jupyter() as made:
        use(made, monkeypatch)
        yield made
