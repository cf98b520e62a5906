"""Programs in the container of another program, which counts as running before its container exists."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from node_harness import new_key

from gpupool.node.host.paths import ReplicaFolder
from gpupool.node.runners.container.engine import ContainerEngine, clean_environment
from gpupool.node.runners.container.probe import find_engine
from gpupool.node.runners.container.runner import wait_until_created
from gpupool.node.runners.container.spec import cid_file, container_name

LATE_S = 1.0


@pytest.fixture
def engine(container_store: Path, tmp_path: Path) -> ContainerEngine:
    return find_engine(tmp_path)


@pytest.fixture
def program(engine: ContainerEngine, tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of a program whose container does not exist yet."""
    folder = tmp_path / new_key()
    folder.mkdir()
    yield folder
    engine.call("rm", "--force", "--time", "0", container_name(folder.name))


def test_program_waits_until_the_container_runs(engine: ContainerEngine, program: Path) -> None:
    def start_late() -> None:
        time.sleep(LATE_S)
        place = "--name", container_name(program.name), "--cidfile", str(cid_file(program))
        words = ["run", "--detach", "--rm", *place, *engine.run_options, "localhost/tiny:1", "sleep", "100"]
        subprocess.run(engine.command(*words), check=True, env=clean_environment(), capture_output=True)

    with ThreadPoolExecutor() as threads:
        started = threads.submit(start_late)
        asyncio.run(wait_until_created(engine, program))
        done = engine.call("exec", container_name(program.name), "echo", "inside")
        started.result()
    assert done.stdout == b"inside\n", done.stderr


def test_ended_program_is_not_waited_for(engine: ContainerEngine, program: Path) -> None:
    ReplicaFolder(program).exit.write_text("{}")
    asyncio.run(wait_until_created(engine, program))
    assert engine.call("exec", container_name(program.name), "true").returncode != 0
