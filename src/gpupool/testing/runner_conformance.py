"""Conformance tests of a runner. A subclass makes the runner; pytest collects the tests that it inherits.

The tests start real programs with real shepherds, in folders below ``/tmp``. The programs are shell commands.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from gpupool.domain import ids
from gpupool.domain.protocol.log_records import parse_records
from gpupool.domain.work.program.supervision import ExitReport, ProcessSpec
from gpupool.node.host import locks, process_tree
from gpupool.node.host.paths import ReplicaFolder, RunFolder, StateFolder, boot_id
from gpupool.node.host.records import ShepherdRecord, StartRequest, read_exit, write_stop
from gpupool.node.ports import LaunchRequest, PrepareRequest, Runner
from gpupool.node.shepherd import output_log
from gpupool.node.shepherd.shepherd import open_execution

TIMEOUT_S = 60.0
GRACE_S = 5.0
_LOG_BYTES = 1 << 20
_epochs = count(1)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunnerNode:
    """The folders of a node and its open runner."""

    state: StateFolder
    run: RunFolder
    runner: Runner

    async def start(self, spec: ProcessSpec, **added: str) -> ReplicaFolder:
        """Prepare and launch a program as an agent does; ``added`` are variables of its sharing mode."""
        folder = self.state.replica(spec.key)
        folder.path.mkdir(mode=0o700)
        request = StartRequest(spec, added, (), boot_id(), self.run.path)
        request = await self.runner.prepare(PrepareRequest(request, folder.path, running=(spec.key,)))
        request.write(folder)
        lock = locks.take(folder.lock)
        assert lock is not None, "the lock of a new folder is held"
        try:
            await self.runner.launch(LaunchRequest(folder.path, self.run.path, request.spec), lock)
        finally:
            os.close(lock)
        return folder

    def pids(self, folder: ReplicaFolder) -> frozenset[int]:
        """Return the processes that the runner finds for a program."""
        tree = self.runner.survey([folder.path]).get(folder.key)
        return frozenset() if tree is None else tree.pids


class RunnerConformance:
    """Tests of one runner. ``make_runner`` is required; override ``spec`` for programs that need more."""

    def make_runner(self, state: StateFolder, run: RunFolder) -> Runner:
        """Return a new runner for a node with these folders."""
        raise NotImplementedError

    def spec(self, line: str, **changes: Any) -> ProcessSpec:
        """Return the spec of a program that executes a shell line."""
        # A random key, as in a pool: the same key in two test processes of one machine would be one program.
        key = ids.attempt_key(ids.workload_id(secrets.randbits(ids.ID_BITS)), 0, 1)
        values: dict[str, Any] = {"key": key, "epoch": next(_epochs), "cwd": "/"}
        values |= {"argv": ("sh", "-c", line), "env": {"PATH": os.defpath, "OWN": "of the job"}, "grace_s": GRACE_S}
        return ProcessSpec(**values | changes)

    def test_reports_exit_status_and_output(self) -> None:
        """Check that the exit report has the status of the program, and the log its output."""

        async def scenario(node: RunnerNode) -> None:
            folder = await node.start(self.spec('echo "$OWN, $ADDED"; exit 7'), ADDED="by the mode")
            assert (await ended(folder)).exit_code == 7
            assert b"of the job, by the mode" in output(folder)

        self._with_node(scenario)

    def test_program_finds_files_of_the_pool_where_its_traits_say(self) -> None:
        """Check that a variable of the sharing mode has the path that the program sees, and that the file exists."""

        async def scenario(node: RunnerNode) -> None:
            file = node.run.path / "file-of-the-mode"
            file.write_text("its content")
            spec = self.spec('echo "$FILE"; cat "$FILE"')
            folder = await node.start(spec, FILE=str(file))
            assert (await ended(folder)).exit_code == 0
            inside = node.runner.traits(spec).path_inside(str(file))
            assert f"{inside}\nits content".encode() in output(folder)

        self._with_node(scenario)

    def test_traits_leave_other_paths_unchanged(self) -> None:
        """Check that only the pool's own files can have another path for a program."""

        async def scenario(node: RunnerNode) -> None:
            inside = node.runner.traits(self.spec("true")).path_inside
            assert [inside(path) for path in ("", "/usr/lib/libc.so.6")] == ["", "/usr/lib/libc.so.6"]

        self._with_node(scenario)

    def test_shepherd_can_load_the_execution(self) -> None:
        """Check that the class in the prepared request exists."""

        async def scenario(node: RunnerNode) -> None:
            folder = await node.start(self.spec("true"))
            request = StartRequest.read(folder)
            assert request is not None
            open_execution(folder, request).check()

        self._with_node(scenario)

    def test_survey_finds_the_processes_while_they_run(self) -> None:
        """Check that the survey returns the shepherd and its program, and nothing after their end."""

        async def scenario(node: RunnerNode) -> None:
            folder = await node.start(self.spec("sleep 600"))
            record = await started(folder)
            assert {record.pid, record.program} <= node.pids(folder)
            await stop(folder, record)
            await until(lambda: not node.pids(folder))

        self._with_node(scenario)

    def test_the_shepherd_holds_the_lock_until_its_end(self) -> None:
        """Check that an agent can see by the lock that a shepherd lives."""

        async def scenario(node: RunnerNode) -> None:
            folder = await node.start(self.spec("sleep 600"))
            record = await started(folder)
            assert locks.take(folder.lock) is None
            await stop(folder, record)
            await until(lambda: _free(folder))

        self._with_node(scenario)

    def test_a_stop_ends_the_whole_tree(self) -> None:
        """Check that background processes of the program end with it, also those that ignore SIGTERM."""

        async def scenario(node: RunnerNode) -> None:
            folder = await node.start(self.spec("trap '' TERM; (trap '' TERM; sleep 600) & wait", grace_s=1.0))
            record = await started(folder)
            await stop(folder, record, grace_s=1.0)
            await until(lambda: not process_tree.marked(folder.key, process_tree.scan()))

        self._with_node(scenario)

    def test_end_remains_ends_the_program_of_a_lost_shepherd(self) -> None:
        """Check that repeated calls of ``end_remains`` leave no process after a kill of the shepherd."""

        async def scenario(node: RunnerNode) -> None:
            folder = await node.start(self.spec("sleep 600 & sleep 600"))
            record = await started(folder)
            left = node.pids(folder) - {record.pid}
            os.kill(record.pid, signal.SIGKILL)
            await until(lambda: node.runner.end_remains(folder.path))
            await until(lambda: not process_tree.alive(set(left), process_tree.scan()))
            await node.runner.clean(folder.path)

        self._with_node(scenario)

    def test_command_is_checked_where_the_program_runs(self) -> None:
        """Check the environment of a command, its status and last output, its limits, and that nothing is left."""

        async def scenario(node: RunnerNode) -> None:
            folder = await node.start(self.spec("sleep 600"), ADDED="by the mode")
            record = await started(folder)

            async def check(line: str, timeout_s: float = TIMEOUT_S / 2) -> str:
                return await node.runner.check_command(folder.path, ("sh", "-c", line), timeout_s)

            said = "not checked"
            for _ in range(300):
                said = said and await check('test "$OWN, $ADDED" = "of the job, by the mode"')
                await asyncio.sleep(0.1 if said else 0.0)  # its container is not there yet
            assert not said
            assert await check("echo first; echo last; exit 3") == "the command ended with status 3: last"
            assert "did not end within 1 s: waits" in await check("echo waits; trap '' TERM; sleep 600 & wait", 1.0)
            assert "wrote more than" in await check("while :; do echo 0123456789012345678901234567890123456789; done")
            assert not await check("sleep 600 &")
            tree = node.pids(folder)
            await until(lambda: process_tree.marked(folder.key, process_tree.scan()) <= tree)
            await stop(folder, record)

        self._with_node(scenario)

    def test_programs_continue_without_the_agent(self) -> None:
        """Check that a program outlives ``close``, and that the runner of the next agent finds it."""

        async def scenario(node: RunnerNode) -> None:
            folder = await node.start(self.spec("sleep 600"))
            record = await started(folder)
            await node.runner.close()
            other = RunnerNode(node.state, node.run, self.make_runner(node.state, node.run))
            await other.runner.open()
            await other.runner.adopt([folder.key])
            assert {record.pid, record.program} <= other.pids(folder)
            await stop(folder, record)
            await other.runner.close()

        self._with_node(scenario)

    def test_clean_and_drop_may_be_called_twice(self) -> None:
        """Check that no call fails for a program that was cleaned up before."""

        async def scenario(node: RunnerNode) -> None:
            folder = await node.start(self.spec("true"))
            assert (await ended(folder)).exit_code == 0
            for _ in range(2):
                await node.runner.clean(folder.path)
                node.runner.drop(folder.path)

        self._with_node(scenario)

    def _with_node(self, scenario: Callable[[RunnerNode], Awaitable[None]]) -> None:
        with _folders() as (state, run):
            asyncio.run(self._run(RunnerNode(state, run, self.make_runner(state, run)), scenario))

    @staticmethod
    async def _run(node: RunnerNode, scenario: Callable[[RunnerNode], Awaitable[None]]) -> None:
        await node.runner.open()
        try:
            await scenario(node)
        finally:
            for path in node.state.replicas.iterdir():
                await _end(ReplicaFolder(path), node.runner)
            await node.runner.close()


async def started(folder: ReplicaFolder) -> ShepherdRecord:
    """Return the shepherd's record once its program runs."""

    def look() -> ShepherdRecord | None:
        record = ShepherdRecord.read(folder)
        return record if record is not None and record.started_at is not None else None

    return await until(look)


async def ended(folder: ReplicaFolder) -> ExitReport:
    """Return the exit report once there is one."""
    return await until(lambda: read_exit(folder))


def output(folder: ReplicaFolder) -> bytes:
    """Return the output of a program so far."""
    data = b"".join(batch.data for batch in output_log.read(folder.log, "", _LOG_BYTES))
    return b"".join(data[one.begin : one.end] for one in parse_records(data))


async def stop(folder: ReplicaFolder, record: ShepherdRecord, grace_s: float = GRACE_S) -> ExitReport:
    """Stop a program as an agent does; return its exit report."""
    write_stop(folder, grace_s)
    os.kill(record.pid, signal.SIGTERM)
    return await ended(folder)


async def until(look: Callable[[], T | None]) -> T:
    """Return the first true result; fail after ``TIMEOUT_S``."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := look()):
        assert time.monotonic() < deadline, "timed out"
        await asyncio.sleep(0.02)
    return found


async def _end(folder: ReplicaFolder, runner: Runner) -> None:
    """End what a failed test has left."""
    record = ShepherdRecord.read(folder)
    if record is not None and read_exit(folder) is None and process_tree.start_time(record.pid) == record.start:
        os.kill(record.pid, signal.SIGKILL)
        await until(lambda: runner.end_remains(folder.path))
    await runner.clean(folder.path)


def _free(folder: ReplicaFolder) -> bool:
    lock = locks.take(folder.lock)
    if lock is not None:
        os.close(lock)
    return lock is not None


@contextmanager
def _folders() -> Iterator[tuple[StateFolder, RunFolder]]:
    """Make the folders of a node below /tmp: paths of sockets must be short."""
    root = Path(tempfile.mkdtemp(prefix="gpr", dir="/tmp"))
    root.chmod(0o711)
    try:
        state, run = StateFolder(root / "state" / "node"), RunFolder(root / "run")
        state.make()
        run.make(shared=False)
        yield state, run
    finally:
        shutil.rmtree(root, ignore_errors=True)
