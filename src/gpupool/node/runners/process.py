"""Programs as plain processes of the machine, each under its own shepherd."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from gpupool.node import cgroups, proctree
from gpupool.node.containers import leftovers
from gpupool.node.containers.box import Box
from gpupool.node.paths import ReplicaFolder, RunFolder, bind_socket
from gpupool.node.ports import Launch, Tree
from gpupool.node.proctree import Proc
from gpupool.node.record import ShepherdRecord
from gpupool.node.spawning import Spawner

_BACKLOG = 64


class ProcessRunner:
    """Starts shepherds through a fork server; finds and ends what they leave when they are killed."""

    name: ClassVar[str] = "process"

    def __init__(self) -> None:
        self.spawner = Spawner()
        self._records: dict[str, ShepherdRecord] = {}
        self._seen: dict[str, dict[int, int]] = {}

    async def open(self) -> None:
        """Start the fork server."""
        self.spawner.start()

    async def launch(self, launch: Launch, lock_fd: int) -> int:
        """Start a shepherd; its attach socket takes connections from now on.

        Raises ``ConnectionError`` when it is unknown whether it started, ``OSError`` or ``GpupoolError`` when it did
        not.
        """
        path = RunFolder(launch.run_folder).attach(launch.folder.name)
        with bind_socket(path, socket.SOCK_STREAM, launch.spec.uid) as listener:
            listener.listen(_BACKLOG)
            return await self.spawner.fork(launch.folder, lock_fd, listener.fileno())

    def survey(self, folders: Sequence[Path]) -> dict[str, Tree]:
        """One look at /proc for all programs: trees by descent from their shepherds."""
        table = proctree.scan()
        children = proctree.children_of(table)
        found: dict[str, Tree] = {}
        for folder in folders:
            record = self._record(ReplicaFolder(folder))
            shepherd = None if record is None else table.get(record.pid)
            if record is None or shepherd is None or shepherd.start != record.start:
                continue
            below = proctree.descendants([record.pid], children)
            self._seen[folder.name] = {pid: table[pid].start for pid in below}
            cpu_s = shepherd.reaped_cpu_s + sum(table[pid].cpu_s for pid in below)
            found[folder.name] = Tree(frozenset(below | {record.pid}), cpu_s)
        return found

    def _record(self, folder: ReplicaFolder) -> ShepherdRecord | None:
        """Read once: who supervises never changes."""
        known = self._records.get(folder.key)
        if known is None and (known := ShepherdRecord.read(folder)) is not None:
            self._records[folder.key] = known
        return known

    def end_remains(self, folder: Path) -> bool:
        """Kill what has the program's mark, is in its groups or was seen in its tree; True when there was nothing."""
        replica = ReplicaFolder(folder)
        record = ShepherdRecord.read(replica)
        groups = () if record is None else record.cgroups
        cgroups.kill(groups)
        table = proctree.scan()
        left = proctree.marked(replica.key, table) | cgroups.members(groups) | _session(record, table)
        left |= {pid for pid, start in self._seen.get(replica.key, {}).items() if _same(table.get(pid), start)}
        left = proctree.alive(left | proctree.descendants(left, proctree.children_of(table)), table)
        left.discard(os.getpid())
        for pid in left:
            proctree.send(table[pid], signal.SIGKILL)
        box = Box.read(replica)
        if box is not None and not leftovers.end_foreign(box, replica.key):
            return False
        if not left:
            cgroups.remove(groups)
        return not left

    def drop(self, folder: Path) -> None:
        """Forget what was remembered of a program that has ended."""
        self._records.pop(folder.name, None)
        self._seen.pop(folder.name, None)

    async def close(self) -> None:
        """Let the fork server go; shepherds and programs stay."""
        self.spawner.stop()


def _same(proc: Proc | None, start: int) -> bool:
    return proc is not None and proc.start == start


def _session(record: ShepherdRecord | None, table: dict[int, Proc]) -> set[int]:
    """The session that the program leads, as long as it is there to show that the number is still its own."""
    if record is None or record.program is None or record.program_start is None:
        return set()
    if not _same(table.get(record.program), record.program_start):
        return set()
    return {proc.pid for proc in table.values() if proc.session == record.program}
