"""The conformance tests of runners, for programs in containers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpupool.domain.work.program.container import ContainerSpec
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.host.paths import RunFolder, StateFolder
from gpupool.node.ports import Runner
from gpupool.node.runners.container.runner import ContainerRunner
from gpupool.node.runners.process.runner import ProcessRunner
from gpupool.testing.runner_conformance import RunnerConformance


class TestContainerRunner(RunnerConformance):
    @pytest.fixture(autouse=True)
    def _image(self, container_store: Path) -> None:
        """Need the image of these tests."""

    def make_runner(self, state: StateFolder, run: RunFolder) -> Runner:
        return ContainerRunner(ProcessRunner(), state.path, run)

    def spec(self, line: str, **changes: Any) -> ProcessSpec:
        return replace(super().spec(line, **changes), container=ContainerSpec("localhost/tiny:1"))
