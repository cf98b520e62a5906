"""Programs as plain processes of the machine, each under its own shepherd."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import ClassVar

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.host import cgroups, process_tree
from gpupool.node.host.paths import ReplicaFolder, RunFolder
from gpupool.node.host.process_tree import Proc
from gpupool.node.host.records import MAX_CHECK_BYTES, CheckRequest, ShepherdRecord, StartRequest
from gpupool.node.ports import LaunchRequest, PrepareRequest, ProcessTree, ProgramTraits
from gpupool.unix_sockets import listen

_BACKLOG = 64
ANSWER_TIMEOUT_S = 10.0  # of the fork server
_ANSWER_LIMIT = 64  # bytes


class ProcessRunner:
    """Starts shepherds through a fork server, and ends the remaining processes of killed shepherds."""

    name: ClassVar[str] = "process"

    def __init__(self) -> None:
        self.spawner = SpawnerClient()
        self._records: dict[str, ShepherdRecord] = {}
        self._seen: dict[str, dict[int, int]] = {}

    async def open(self) -> None:
        """Start the fork server."""
        self.spawner.start()

    async def adopt(self, keys: Collection[str]) -> None:
        """Do nothing: a lost program is found by its folder."""

    def traits(self, spec: ProcessSpec) -> ProgramTraits:  # noqa: ARG002 - the same for all programs
        """Return the traits of a process of the node."""
        return ProgramTraits()

    async def prepare(self, program: PrepareRequest) -> StartRequest:
        """Return the request as it is."""
        return program.request

    async def launch(self, launch: LaunchRequest, lock_fd: int) -> int:
        """Start a shepherd; its attach socket accepts connections from then on.

        Raises ``ConnectionError`` when it is unknown whether it started, ``OSError`` or ``GpupoolError`` when it did
        not.
        """
        path = RunFolder(launch.run_folder).attach(launch.folder.name)
        with listen(path, uid=launch.spec.uid, backlog=_BACKLOG) as listener:
            return await self.spawner.fork(launch.folder, lock_fd, listener.fileno())

    async def check_command(self, folder: Path, argv: Sequence[str], timeout_s: float) -> str:
        """Execute a command where a program runs; return its problem."""
        return await self.spawner.check(folder, CheckRequest(tuple(argv), timeout_s))

    def survey(self, folders: Sequence[Path]) -> dict[str, ProcessTree]:
        """Return the process trees below the shepherds, from one scan of /proc for all programs."""
        if not folders:
            return {}
        table = process_tree.scan()
        children = process_tree.children_of(table)
        found: dict[str, ProcessTree] = {}
        for folder in folders:
            record = self._record(ReplicaFolder(folder))
            shepherd = None if record is None else table.get(record.pid)
            if record is None or shepherd is None or shepherd.start != record.start:
                continue
            below = frozenset(process_tree.descendants([record.pid], children))
            self._seen[folder.name] = {pid: table[pid].start for pid in below}
            cpu_s = shepherd.reaped_cpu_s + sum(table[pid].cpu_s for pid in below)
            found[folder.name] = ProcessTree(below | {record.pid}, cpu_s)
        return found

    def _record(self, folder: ReplicaFolder) -> ShepherdRecord | None:
        """Read the record once: it does not change its shepherd."""
        known = self._records.get(folder.key)
        if known is None and (known := ShepherdRecord.read(folder)) is not None:
            self._records[folder.key] = known
        return known

    def end_remains(self, folder: Path) -> bool:
        """Kill processes with the program's mark, in its groups or seen in its tree; True if none were left."""
        replica = ReplicaFolder(folder)
        record = ShepherdRecord.read(replica)
        groups = () if record is None else record.cgroups
        cgroups.kill(groups)
        table = process_tree.scan()
        left = process_tree.marked(replica.key, table) | cgroups.members(groups) | _session(record, table)
        left |= {pid for pid, start in self._seen.get(replica.key, {}).items() if _same(table.get(pid), start)}
        left.update(process_tree.descendants(left, process_tree.children_of(table)))
        left = process_tree.alive(left, table)
        left.discard(os.getpid())
        for pid in left:
            process_tree.send(table[pid], signal.SIGKILL)
        if not left:
            cgroups.remove(groups)
        return not left

    async def clean(self, folder: Path) -> None:
        """Do nothing: a process leaves nothing outside of its folder."""

    def drop(self, folder: Path) -> None:
        """Forget a program that has ended."""
        self._records.pop(folder.name, None)
        self._seen.pop(folder.name, None)

    async def close(self) -> None:
        """Stop the fork server; shepherds and programs continue."""
        self.spawner.stop()


def _same(proc: Proc | None, start: int) -> bool:
    return proc is not None and proc.start == start


def _session(record: ShepherdRecord | None, table: dict[int, Proc]) -> set[int]:
    """Return the session that the program leads, if the program still exists and owns that number."""
    if record is None or record.program is None or record.program_start is None:
        return set()
    if not _same(table.get(record.program), record.program_start):
        return set()
    return {proc.pid for proc in table.values() if proc.session == record.program}


class SpawnerClient:
    """Sends requests to one fork server, one at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Return the pid of the fork server; None if it is not running."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the fork server."""
        self.stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(0)
        # Not -I: it would hide a gpupool that was installed with `pip install --user`.
        command = [sys.executable, "-E", "-P", "-X", "utf8", "-m", "gpupool.node.spawner"]
        with theirs:
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        self._control = ours

    def stop(self) -> None:
        """Close the connection, so that the fork server ends, and reap it."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(1)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    async def fork(self, folder: Path, lock_fd: int, listener_fd: int) -> int:
        """Return the pid of a new shepherd for a folder. The caller closes both descriptors.

        Raises ``ConnectionError`` when the fork server died: the shepherd may or may not exist, its lock shows that.
        Raises ``GpupoolError(INTERNAL)`` when the machine cannot start another process.
        """
        return await self._fork(folder, [lock_fd, listener_fd])

    async def check(self, folder: Path, check: CheckRequest) -> str:
        """Return the problem of a command that is executed where a program runs; empty if there is none.

        Raises ``OSError`` or ``GpupoolError`` if it was not executed.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        loop = asyncio.get_running_loop()
        with ours:  # its end ends the check
            ours.settimeout(0)
            with theirs:
                await self._fork(folder, [theirs.fileno()])
            async with asyncio.timeout(check.timeout_s + ANSWER_TIMEOUT_S):
                await loop.sock_sendall(ours, check.encode())
                answer = await loop.sock_recv(ours, MAX_CHECK_BYTES)
        if not answer:
            raise ConnectionError("the process of the check ended")
        return answer.decode("utf-8", "replace").rstrip("\n")

    async def _fork(self, folder: Path, fds: list[int]) -> int:
        async with self._turn:
            if self._control is None:
                self.start()
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    answer = await self._exchange(folder, fds)
            except OSError as error:
                self._discard()
                raise ConnectionError("the spawner ended") from error
            except asyncio.CancelledError:
                self._discard()  # its answer would be read as the answer to the next request
                raise
        if answer < 0:
            raise GpupoolError(
                ErrorCode.INTERNAL,
                f"The node could not start another process: {os.strerror(-answer)}.",
                "Check the process and memory limits of the account that runs the pool.",
            )
        return answer

    async def _exchange(self, folder: Path, fds: list[int]) -> int:
        control = self._control
        if control is None:
            raise ConnectionError("no spawner")
        socket.send_fds(control, [os.fsencode(folder)], fds)
        data = await asyncio.get_running_loop().sock_recv(control, _ANSWER_LIMIT)
        if not data:
            raise ConnectionError("the spawner closed the connection")
        return int(data)

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            if self._process is not None:
                self._process.kill()
        self.stop()
