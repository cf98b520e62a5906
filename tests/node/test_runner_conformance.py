"""The conformance tests of runners, for the process runner and for the example of the documentation."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gpupool.domain.errors import GpupoolError
from gpupool.domain.work.program.container import ContainerSpec
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node import agent_main
from gpupool.node.agent.agent import Agent, Backends
from gpupool.node.agent.attempt import check_spec
from gpupool.node.host.child import StartError
from gpupool.node.host.paths import ReplicaFolder, RunFolder, StateFolder
from gpupool.node.host.records import StartRequest
from gpupool.node.inventory.emulated import EmulatedInventory
from gpupool.node.ports import Execution, PrepareRequest, ProgramTraits, Runner
from gpupool.node.runners.container.execution import ContainerExecution
from gpupool.node.runners.container.runner import EXECUTION, ContainerRunner
from gpupool.node.runners.process.execution import ProcessExecution
from gpupool.node.runners.process.runner import ProcessRunner
from gpupool.node.shepherd.shepherd import open_execution
from gpupool.testing.runner_conformance import RunnerConformance, output, until

PAGE = Path(__file__).parents[2] / "docs/contributing/add-a-runner.md"
CODE = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
EXAMPLE: dict[str, Any] = {"__name__": "nice_runner"}
exec(compile(CODE["nice_runner.py"], "nice_runner.py", "exec"), EXAMPLE)
NiceRunner = EXAMPLE["NiceRunner"]


class TestProcessRunner(RunnerConformance):
    def make_runner(self, state: StateFolder, run: RunFolder) -> Runner:
        return ProcessRunner()


class TestPlainProgramsOfTheContainerRunner(RunnerConformance):
    def make_runner(self, state: StateFolder, run: RunFolder) -> Runner:
        return ContainerRunner(ProcessRunner(), state.path, run)


class OwnCommandRunner(ProcessRunner):
    """Stands for a runner of a package whose programs have a command, a login and paths of their own."""

    def traits(self, spec: ProcessSpec) -> ProgramTraits:
        return ProgramTraits(has_command=True, has_login=True, path_inside=lambda path: path.replace("/pool/", "/in/"))

    async def prepare(self, program: PrepareRequest) -> StartRequest:
        request = program.request
        argv = request.spec.argv or ("sh", "-c", "echo HOME is ${HOME-unset}")
        execution = f"{ProcessExecution.__module__}:{ProcessExecution.__qualname__}"
        return replace(request, spec=replace(request.spec, argv=argv), execution=execution)


class OtherExecution(ProcessExecution):
    """Stands for the execution of a package."""


class TestRunnerWithTraitsAndExecution(RunnerConformance):
    def make_runner(self, state: StateFolder, run: RunFolder) -> Runner:
        return OwnCommandRunner()


def test_agent_and_modes_follow_the_traits_of_any_runner(tmp_path: Path) -> None:
    async def scenario(agent: Agent) -> None:
        await agent.open()
        spec = ProcessSpec("w0000000001.0.0", 1, (), {"PATH": os.defpath}, "/")
        status = await agent.start(spec)
        await until(lambda: next(iter(agent.statuses())).exit)
        assert output(agent.state.replica(status.key)) == b"HOME is unset\n"
        (program,) = [call.args[0] for call in seen.await_args_list]
        assert program.path_inside("/pool/lib.so") == "/in/lib.so"
        await agent.close()

    with tempfile.TemporaryDirectory(prefix="gpr", dir="/tmp") as root:
        state, run = StateFolder(Path(root, "state")), RunFolder(Path(root, "run"))
        state.make()
        run.make(shared=False)
        nothing: Any = None
        agent = Agent(state, run, Backends(EmulatedInventory.open("n1", "1xT4"), OwnCommandRunner(), nothing, nothing))
        with mock.patch.object(agent.sharing, "prepare", wraps=agent.sharing.prepare) as seen:
            asyncio.run(scenario(agent))


def test_program_without_command_needs_a_runner_that_has_one() -> None:
    spec = ProcessSpec("w0000000001.0.0", 1, (), {}, "/")
    check_spec(spec, has_command=True)
    with pytest.raises(GpupoolError, match="cannot be passed"):
        check_spec(spec, has_command=False)


@pytest.mark.parametrize(
    ("name", "made"),
    [("", ProcessExecution), (f"{__name__}:OtherExecution", OtherExecution), (EXECUTION, ContainerExecution)],
)
def test_shepherd_uses_the_execution_that_the_request_names(name: str, made: type[Execution], tmp_path: Path) -> None:
    request = StartRequest(ProcessSpec("w0000000001.0.0", 1, ("true",), {}, "/"), {}, (), "", tmp_path, execution=name)
    assert type(open_execution(ReplicaFolder(tmp_path), request)) is made


@pytest.mark.parametrize("name", ["", EXECUTION])
def test_program_with_image_never_runs_outside_its_container(name: str, tmp_path: Path) -> None:
    spec = ProcessSpec("w0000000001.0.0", 1, ("true",), {}, "/", container=ContainerSpec("busybox"))
    request = StartRequest(spec, {}, (), "", tmp_path, execution=name)
    with pytest.raises(StartError, match="record of its container is missing"):
        open_execution(ReplicaFolder(tmp_path), request).check()


class TestExampleOfTheDocumentation(RunnerConformance):
    def make_runner(self, state: StateFolder, run: RunFolder) -> Runner:
        return agent_main.open_runner("nice")

    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module, name = re.findall(r'^nice = "(\w+):(\w+)"$', PAGE.read_text(encoding="utf-8"), re.MULTILINE)[0]
        assert (module, name) == ("nice_runner", "NiceRunner")
        point = importlib.metadata.EntryPoint("nice", f"{__name__}:{name}", agent_main.RUNNERS)
        monkeypatch.setattr(agent_main, "entry_points", lambda group: importlib.metadata.EntryPoints([point]))

    def test_program_runs_under_nice(self) -> None:
        spec = self.spec("true")
        assert NiceRunner.nice_command(spec.argv) == ("nice", "-n", "10", "sh", "-c", "true")
