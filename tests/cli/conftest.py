"""Fixtures: a fake pool, and the real program run against it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_fake_pool import COMMAND, FakePool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[FakePool]:
    fake = FakePool(tmp_path)
    yield fake
    fake.close()


@pytest.fixture
def gpupool(pool: FakePool) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run the real program against the pool."""

    def run(*args: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[bytes]:
        more.setdefault("input", b"")
        return subprocess.run(
            [*COMMAND, *args], env=pool.env | (env or {}), capture_output=True, timeout=60, check=False, **more
        )

    return run
