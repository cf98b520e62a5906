"""A program that uses GPU time without its turns is warned, throttled, and ended; its honest neighbour is not."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_share import T4_MIB, UUID, Node, events, eventually, node_with, notes_with, until_said
from native_harness import compile_program
from node_harness import spec

from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.sharing.slices.watch import TIME_CHECK

PROGRAM = Path(__file__).parent / "programs/second_driver.c"


@pytest.fixture
def node(native_out: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv(TIME_CHECK, "15,2,4,4")
    with node_with(native_out) as made:
        yield made


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(PROGRAM, tmp_path_factory.mktemp("second"))


def tenant(permille: int, *command: str) -> ProcessSpec:
    return spec(*command, gpus=(GpuShare(UUID, 0, permille, T4_MIB * permille // 1000),))


def test_use_of_time_without_turns_is_warned_throttled_and_ended(node: Node, program: Path, native_out: Path) -> None:
    honest = [tenant(permille, str(program)) for permille in (750, 100)]
    thief = tenant(100, str(program), str(native_out / "fake/libcuda.so.1"))
    for each in (*honest, thief):
        node.start(each)
        until_said(node, each.key, "working")
    eventually(lambda: notes_with(node, thief.key, "without waiting for their turns"), "a warning")
    eventually(lambda: notes_with(node, thief.key, "paused for"), "it is throttled")
    assert node.ended(thief.key).signal == signal.SIGTERM
    steps = events(node, "time exceeded")
    assert [entry["step"] for entry in steps] == ["warn", "throttle", "term"]
    assert all(int(str(entry["used"])) > 10 + 15 and entry["share"] == 10 for entry in steps), steps
    for each in honest:
        assert not notes_with(node, each.key, UUID)
        node.ask("stop", key=each.key, grace_s=0)
        node.ended(each.key)


def test_program_that_a_killed_agent_left_paused_is_resumed(node: Node, program: Path, native_out: Path) -> None:
    honest = tenant(750, str(program))
    thief = tenant(100, str(program), str(native_out / "fake/libcuda.so.1"))
    for each in (honest, thief):
        node.start(each)
        until_said(node, each.key, "working")
    file = node.run / "paused-processes.json"
    eventually(file.exists, "the program is paused")
    node.down(signal.SIGKILL)
    node.up()
    eventually(lambda: not file.exists(), "it is resumed")
    for each in (thief, honest):
        node.ask("stop", key=each.key, grace_s=5)
        assert node.ended(each.key).signal == signal.SIGTERM
