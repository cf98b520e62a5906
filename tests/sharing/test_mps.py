"""The MPS mode: a daemon starts with the first program of a user on a GPU and ends with the last, also after kills."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mps_double import make_double

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.nodes.sharing import ComputePolicy
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.host import process_tree
from gpupool.node.inventory.emulated import EmulatedInventory
from gpupool.node.ports import NodeProgram, SharingHost
from gpupool.node.sharing.mps import mps_daemon, mps_mode
from gpupool.node.sharing.mps.mps_mode import MpsSharing

QUARTER = GpuShare("GPU-a", 0, 250, 4096)
NOBODY = 65534


class Node:
    """A pool's run folder and a PATH with the double; modes built on it stand for agents, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[tuple[str, str]] = []

    def agent(self, *, shared: bool = False) -> MpsSharing:
        inventory: Any = None  # only asked whether it is an emulated one
        return MpsSharing(
            SharingHost(
                self.folder, inventory, shared, lambda *note: self.notes.append(note), lambda *_: None, self.folder
            )
        )

    def program(self, number: int, share: GpuShare = QUARTER, **spec: Any) -> NodeProgram:
        key = f"w{number:010}.0.0"
        return NodeProgram(ProcessSpec(key, 1, ("true",), {}, "/", gpus=(share,), **spec), {}, self.folder)

    def daemons(self) -> list[mps_daemon.MpsDaemon]:
        found = [mps_daemon.read_daemon(record) for record in (self.folder / "mps").glob("*.json")]
        return [daemon for daemon in found if daemon is not None]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="gpupool-mps-"))  # short: there are sockets in it
    folder.chmod(0o711)
    make_double(folder / "bin")
    (folder / "bin").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    made = Node(folder)
    yield made
    for daemon in made.daemons():
        for pid in daemon.processes():
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))  # type: ignore[arg-type]


async def ready(mode: MpsSharing, program: NodeProgram) -> NodeProgram:
    """Return the program with the prepared environment."""
    return replace(program, env=(await mode.prepare(program)).env)


def owner(path: Path | str) -> int:
    return Path(path).stat().st_uid


def test_daemon_starts_with_first_program_and_ends_with_last(node: Node) -> None:
    async def story() -> None:
        mode = node.agent()
        first, second = [await ready(mode, node.program(n)) for n in (1, 2)]
        (daemon,) = node.daemons()
        processes = daemon.processes()
        assert daemon.alive
        assert len(processes) == 2  # the daemon and its server
        assert mode.helpers() == processes.keys()
        assert first.env == second.env
        assert (daemon.folder / "log/started").read_text() == f"uid={os.geteuid()} gpu=GPU-a\n"
        await mode.release(first)
        await mode.release(first)
        assert daemon.alive
        await mode.release(second)
        assert not daemon.alive
        assert all(process_tree.start_time(pid) != start for pid, start in processes.items())
        assert list((node.folder / "mps").iterdir()) == []
        await mode.close()

    run(story)


def test_program_gets_daemon_and_limits_in_environment(node: Node) -> None:
    async def story() -> None:
        mode = node.agent()
        free = await mode.prepare(node.program(1))
        capped = await mode.prepare(node.program(2, GpuShare("GPU-a", 0, 255, 4177), compute=ComputePolicy.CAP))
        tiny = await mode.prepare(node.program(3, GpuShare("GPU-a", 0, 5, 82), compute=ComputePolicy.CAP))
        (daemon,) = node.daemons()
        assert free.env["CUDA_VISIBLE_DEVICES"] == "GPU-a"
        assert free.env["CUDA_MPS_PIPE_DIRECTORY"] == str(daemon.pipes)
        assert free.env["CUDA_MPS_LOG_DIRECTORY"] == str(daemon.folder / "log")
        assert free.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in free.env
        assert capped.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4177M"
        assert capped.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
        assert tiny.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "1"
        assert free.mode == "mps"
        assert "fault" in free.guarantee
        assert any("each process" in note for note in free.notes)
        for number in (1, 2, 3):
            await mode.release(node.program(number))
        await mode.close()

    run(story)


def test_folders_are_their_users_alone(node: Node) -> None:
    async def story() -> None:
        mode = node.agent(shared=True)
        program = await ready(mode, node.program(1))
        (daemon,) = node.daemons()
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (daemon.folder, daemon.pipes, daemon.record)]
        assert modes == [0o700, 0o700, 0o600]
        assert stat.S_IMODE((node.folder / "mps").stat().st_mode) == 0o711
        await mode.release(program)
        await mode.close()

    run(story)


def test_each_gpu_has_a_daemon_of_its_own_also_when_programs_start_at_once(node: Node) -> None:
    async def story() -> None:
        mode = node.agent()
        other = GpuShare("GPU-b", 1, 250, 4096)
        programs = [node.program(n, other if n % 2 else QUARTER) for n in range(6)]
        await asyncio.gather(*(mode.prepare(program) for program in programs))
        assert sorted(daemon.gpu_uuid for daemon in node.daemons()) == ["GPU-a", "GPU-b"]
        await asyncio.gather(*(mode.release(program) for program in programs))
        assert node.daemons() == []
        await mode.close()

    run(story)


def test_next_agent_keeps_used_daemons_and_ends_others(node: Node) -> None:
    async def story() -> None:
        mode = node.agent()
        kept = await ready(mode, node.program(1))
        await mode.prepare(node.program(2, GpuShare("GPU-b", 1, 250, 4096)))
        used, unused = sorted(node.daemons(), key=lambda daemon: daemon.gpu_uuid)
        await mode.close()  # and no more: the agent is gone
        assert used.alive
        assert unused.alive
        heir = node.agent()
        await heir.adopt([kept])
        assert used.alive
        assert not unused.alive
        again = await heir.prepare(node.program(3))
        assert again.env["CUDA_MPS_PIPE_DIRECTORY"] == str(used.pipes)
        await heir.release(kept)
        assert used.alive
        await heir.release(node.program(3))
        assert not used.alive
        await heir.close()

    run(story)


def test_unrecorded_daemon_of_killed_agent_is_ended(node: Node) -> None:
    async def story() -> None:
        mode = node.agent()
        await mode.prepare(node.program(1))
        (daemon,) = node.daemons()
        replace(daemon, pid=0, start=0).write()
        await mode.close()
        heir = node.agent()
        await heir.adopt([])
        assert not daemon.alive
        assert node.daemons() == []
        await heir.close()

    run(story)


def test_killed_daemon_is_noticed_and_replaced_for_new_programs(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_mode, "_CHECK_INTERVAL_S", 0.02)

    async def story() -> None:
        mode = node.agent()
        orphan = await ready(mode, node.program(1))
        (dead,) = node.daemons()
        await asyncio.sleep(0.2)  # it is looked at now and then
        processes = dead.processes()
        os.kill(dead.pid, signal.SIGKILL)
        async with asyncio.timeout(50):
            while not node.notes:  # noqa: ASYNC110 - the notes are a plain list
                await asyncio.sleep(0.02)
        assert node.notes == [(orphan.spec.key, mps_mode.GONE)]
        fresh = await ready(mode, node.program(2))
        assert fresh.env["CUDA_MPS_PIPE_DIRECTORY"] != orphan.env["CUDA_MPS_PIPE_DIRECTORY"]
        await mode.release(orphan)
        assert not dead.folder.exists()
        assert all(process_tree.start_time(pid) != start for pid, start in processes.items()), "its server is ended too"
        assert [daemon.alive for daemon in node.daemons()] == [True]
        await mode.release(fresh)
        assert node.daemons() == []
        await mode.close()

    run(story)


def test_daemon_that_ignores_stop_is_killed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_daemon, "_QUIT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(mps_daemon, "_TERM_TIMEOUT_S", 0.3)
    make_double(node.folder / "bin", stubborn=True)

    async def story() -> None:
        mode = node.agent()
        program = await ready(mode, node.program(1))
        (daemon,) = node.daemons()
        processes = daemon.processes()
        await mode.release(program)
        while any(process_tree.start_time(pid) == start for pid, start in processes.items()):  # noqa: ASYNC110 - the kernel ends them
            await asyncio.sleep(0.02)
        assert node.daemons() == []
        await mode.close()

    run(story)


def test_daemon_that_cannot_start_reports_reason_and_leaves_nothing(node: Node) -> None:
    make_double(node.folder / "bin", refuse="An instance of this daemon is already running")

    async def story() -> None:
        mode = node.agent()
        with pytest.raises(GpupoolError) as refused:
            await mode.prepare(node.program(1))
        assert refused.value.code is ErrorCode.UNSUPPORTED
        assert "already running" in refused.value.message
        assert list((node.folder / "mps").iterdir()) == []
        await mode.close()

    run(story)


def test_one_gpu_serves_one_user_at_a_time(node: Node) -> None:
    async def story() -> None:
        mode = node.agent()
        program = await ready(mode, node.program(1))
        with pytest.raises(GpupoolError) as refused:
            await mode.prepare(node.program(2, uid=os.geteuid() + 1, gid=os.getegid()))
        assert refused.value.code is ErrorCode.NO_CAPACITY
        assert "one user at a time" in refused.value.message
        await mode.release(program)
        await mode.close()

    run(story)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
def test_daemons_run_as_their_users(node: Node) -> None:
    async def story() -> None:
        mode = node.agent(shared=True)
        root = await ready(mode, node.program(1))
        other_gpu = GpuShare("GPU-b", 1, 250, 4096)
        nobody = await ready(mode, node.program(2, other_gpu, uid=NOBODY, gid=NOBODY))
        first, second = sorted(node.daemons(), key=lambda daemon: daemon.gpu_uuid)
        for daemon, uid in ((first, 0), (second, NOBODY)):
            assert {owner(f"/proc/{pid}") for pid in daemon.processes()} == {daemon.uid} == {uid}
            assert {owner(daemon.folder), owner(daemon.pipes)} == {uid}
        assert owner(second.record) == 0
        await mode.release(root)
        await mode.release(nobody)
        assert node.daemons() == []
        await mode.close()

    run(story)


def test_pid_file_with_foreign_process_is_ignored(node: Node) -> None:
    daemon = mps_daemon.MpsDaemon(node.folder / "mps" / "x", NOBODY, NOBODY, "GPU-a")
    daemon.pipes.mkdir(parents=True)
    (daemon.pipes / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    run(lambda: mps_daemon.stop(daemon))  # would end this very test
    assert not daemon.folder.exists()


@pytest.mark.parametrize("count", [0, 2])
def test_only_programs_with_one_gpu(node: Node, count: int) -> None:
    async def story() -> None:
        program = node.program(1)
        program = replace(program, spec=replace(program.spec, gpus=(QUARTER,) * count))
        with pytest.raises(GpupoolError, match="one GPU"):
            await node.agent().prepare(program)

    run(story)


def test_missing_requirements_are_reported(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert node.agent().missing() == ""
    emulated = EmulatedInventory("n1", ())
    host = SharingHost(
        node.folder, emulated, shared=False, note=lambda *_: None, end_reason=lambda *_: None, store=node.folder
    )
    assert "Emulated" in MpsSharing(host).missing()
    monkeypatch.setenv("PATH", "/nowhere")
    assert "not installed" in node.agent().missing()


def test_folder_path_too_long_for_sockets_is_refused(node: Node) -> None:
    deep = node.folder / ("x" * 60)
    deep.mkdir()

    async def story() -> None:
        with pytest.raises(GpupoolError, match="is too long for the sockets"):
            await Node(deep).agent().prepare(node.program(1))

    run(story)
