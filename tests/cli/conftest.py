"""Fixtures: a fake pool, and the real program run against it."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_fake_pool import COMMAND, FakePool

from gpupool.cli import entry

OWN_PROCESS = {"run", "client", "exec", "bash", "shell", "attach"}  # they use descriptors and signals


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[FakePool]:
    fake = FakePool(tmp_path)
    yield fake
    fake.close()


@pytest.fixture
def gpupool(
    pool: FakePool, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run the program against the pool: in a process of its own where that matters, else in this one."""

    def run(*args: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[bytes]:
        if (args and args[0] in OWN_PROCESS) or more:
            more.setdefault("input", b"")
            settings = {"env": pool.env | (env or {}), "capture_output": True, "timeout": 60} | more
            return subprocess.run([*COMMAND, *args], check=False, **settings)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["gpupool", *args])
            patch.setattr(sys, "stdin", io.StringIO())
            for name in ("GPUPOOL_PROJECT", "GPUPOOL_URL", "XDG_CONFIG_HOME", "GPUPOOL_RUN_DIR", "GPUPOOL_DEBUG"):
                patch.delenv(name, raising=False)
            for name, value in (pool.env | (env or {})).items():
                patch.setenv(name, value)
            capfdbinary.readouterr()
            status = entry.run()
        said = capfdbinary.readouterr()
        return subprocess.CompletedProcess(args, status, said.out, said.err)

    return run
