"""A pool of stand-ins for each test, which ends with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from standin_pool import StandInPool

from gpupool.daemon.process.launch import stop


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInPool]:
    """Return a pool that is not started yet, at the place of this process's environment."""
    made = StandInPool(tmp_path)
    monkeypatch.setenv("GPUPOOL_STATE_DIR", made.config.state_dir)
    monkeypatch.delenv("GPUPOOL_RUN_DIR", raising=False)
    monkeypatch.delenv("GPUPOOL_URL", raising=False)
    yield made
    stop(made.config.location)
