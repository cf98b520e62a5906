"""What programs use of the machine's processors, memory and disks, from one look at /proc for all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpupool.node.ports import Runner, Tree

SHARE_OF_A_CORE = 0.01  # looks may cost as much: on a machine with very many processes they are taken less often
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProgramUse:
    """One program: its processes, and what they use. ``cpu_percent`` is 100 for one core, bytes are since it began."""

    pids: frozenset[int]
    cpu_percent: float
    memory_mib: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class _Seen:
    at: float
    cpu_s: float
    bytes: tuple[int, int]


class ProgramMeter:
    """Looks at the trees of programs; blocks for as long as /proc takes."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._seen: dict[str, _Seen] = {}
        self._uses: dict[str, ProgramUse] = {}
        self._looked_at = 0.0
        self._next_at = 0.0

    def look(self, folders: Sequence[Path], now: float) -> Mapping[str, ProgramUse]:
        """By key, those that have processes; ``now`` is monotonic. What is not looked at again is as it was."""
        if now >= self._next_at:
            began = time.thread_time()
            self._look(folders, now)
            # A little early, so that a look a second later is not too early by a hair.
            self._next_at = now + (time.thread_time() - began) / SHARE_OF_A_CORE - 0.1
        return self._uses

    def _look(self, folders: Sequence[Path], now: float) -> None:
        trees = self._runner.survey(folders) if folders else {}
        seen = {key: self._see(key, tree, now) for key, tree in trees.items()}
        self._uses = {key: self._use(key, trees[key], seen[key]) for key in trees}
        self._seen = seen
        self._looked_at = now

    def _see(self, key: str, tree: Tree, now: float) -> _Seen:
        read, written = _io(tree.pids)
        before = self._seen.get(key)
        if before is not None:  # what a process did goes when it does, unless its parent waited for it
            read, written = max(read, before.bytes[0]), max(written, before.bytes[1])
        return _Seen(now, tree.cpu_s, (read, written))

    def _use(self, key: str, tree: Tree, seen: _Seen) -> ProgramUse:
        return ProgramUse(tree.pids, self._cpu_percent(key, seen), _memory_mib(tree.pids), *seen.bytes)

    def _cpu_percent(self, key: str, seen: _Seen) -> float:
        """Since the look before; a program that was not there then has begun since, but for the first look of all."""
        before = self._seen.get(key)
        if before is None and not self._looked_at:
            return 0.0
        since, spent = (self._looked_at, 0.0) if before is None else (before.at, before.cpu_s)
        return max(0.0, 100 * (seen.cpu_s - spent) / (seen.at - since)) if seen.at > since else 0.0


def _memory_mib(pids: Iterable[int]) -> int:
    """Resident memory; what processes may share is counted once, as much as the one with the most of it has."""
    own = shared = 0
    for pid in pids:
        fields = _read(f"/proc/{pid}/statm").split()
        if len(fields) > 2:
            own += int(fields[1]) - int(fields[2])
            shared = max(shared, int(fields[2]))
    return (own + shared) * _PAGE // _MIB


def _io(pids: Iterable[int]) -> tuple[int, int]:
    """Bytes read from and written to disks, those of children that were waited for included."""
    read = written = 0
    for pid in pids:
        for line in _read(f"/proc/{pid}/io").splitlines():
            name, _, value = line.partition(b": ")
            if name == b"read_bytes":
                read += int(value)
            elif name == b"write_bytes":
                written += int(value)
    return read, written


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)
