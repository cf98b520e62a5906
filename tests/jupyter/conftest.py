from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))
sys.path.insert(0, str(Path(__file__).parent.parent / "remote"))
sys.path.insert(0, str(Path(__file__).parent.parent / "services"))
sys.path.insert(0, str(Path(__file__).parent.parent / "web"))

from e2e_pool import RealPool, fresh_pool


@pytest.fixture(scope="session")
def shared_pool() -> Iterator[RealPool]:
    with fresh_pool("2xT4") as made:
        made.env["JUPYTER_DATA_DIR"] = str(made.home / "jupyter")
        made.env["JUPYTER_RUNTIME_DIR"] = str(made.home / "runtime")
        made.env["JUPYTER_CONFIG_DIR"] = str(made.home / "config")
        made.env["IPYTHONDIR"] = str(made.home / "ipython")
        yield made


@pytest.fixture
def pool(shared_pool: RealPool, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealPool]:
    """Two free emulated GPUs, and this process in the environment of their user."""
    for name in ("GPUPOOL_URL", "GPUPOOL_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in shared_pool.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(shared_pool.work)
    yield shared_pool
    shared_pool.clear()
