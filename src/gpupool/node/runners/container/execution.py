"""A program in a container: the shepherd's child is the engine's command.

Unlike the engine's, the processes of the container are in a pid namespace below ours.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import replace

from gpupool.domain.errors import EXIT_NOT_EXECUTABLE, GpupoolError
from gpupool.domain.work.program.supervision import ExitReason, ProcessSpec
from gpupool.node.host import cgroups, process_tree
from gpupool.node.host.child import ProgramChild, StartError
from gpupool.node.host.paths import ReplicaFolder
from gpupool.node.runners.container import cleanup
from gpupool.node.runners.container.child import ContainerChild
from gpupool.node.runners.container.probe import group_paths
from gpupool.node.runners.container.spec import ContainerSetup, cid_file

ENGINE_GRACE_S = 15.0  # for a container engine to clean up after its container
ENGINE_FAILED = 125  # exit code of Podman and Docker for their own errors


class ContainerExecution:
    """Starts the engine's command and signals only the processes in the container."""

    helper_grace_s: float | None = ENGINE_GRACE_S

    def __init__(self, folder: ReplicaFolder, spec: ProcessSpec) -> None:  # noqa: ARG002 - that of every execution
        self._folder = folder
        self._setup = setup = ContainerSetup.read(folder)
        self.extra_cgroups: tuple[str, ...] = () if setup is None else tuple(group_paths(folder.key))

    def check(self) -> None:
        """Raise ``StartError`` if the agent's record is missing: the program would run outside its container."""
        if self._setup is None:
            raise StartError(EXIT_NOT_EXECUTABLE, "Could not start: the record of its container is missing")

    def child(self, plain: ProgramChild) -> ProgramChild:
        """Return the child that becomes the engine's command."""
        rest = (plain.streams, plain.tty, plain.shepherd, plain.cgroup_entries, plain.process_limit)
        return ContainerChild(plain.spec, plain.environment, *rest, setup=self._setup, folder=self._folder.path)

    def command_child(self, plain: ProgramChild) -> ProgramChild:
        """Return the child that becomes the engine's command for a program in this container."""
        setup = self._setup
        inside = None if setup is None else replace(setup, home=setup.home or self._folder.key)
        rest = (plain.streams, plain.tty, plain.shepherd, plain.cgroup_entries, plain.process_limit)
        return ContainerChild(plain.spec, plain.environment, *rest, setup=inside, folder=self._folder.path)

    def send(self, signals: tuple[int, ...], *, catching: bool, ended: bool) -> bool:
        """Signal the program alone, because its engine would clean up on the same signal."""
        return send_to_program(os.getpid(), signals, catching=catching) or ended

    def send_to_foreground(self, signum: int) -> bool:
        """Signal the container's main process and its group."""
        return send_to_foreground(os.getpid(), signum)

    def on_helper_exit(self) -> bool:
        """Return True if the container runs without its monitor: the engine would not notice its end."""
        return bool(processes(os.getpid()))

    def out_of_memory(self, groups: tuple[str, ...]) -> bool:
        """Return True if the container was killed, or has reached its limit (its own group may be gone)."""
        return cgroups.out_of_memory(groups) or cgroups.limit_reached(groups)

    def failed_to_start(self, status: int) -> ExitReason | None:
        """Return why the engine failed before it made the container: without an image or with one; else None."""
        setup = self._setup
        if status != ENGINE_FAILED or setup is None or cid_file(self._folder.path).exists():
            return None
        try:
            missing = setup.engine.call("image", "inspect", "--format", "{{.Id}}", setup.image).returncode != 0
        except GpupoolError:
            missing = False
        return ExitReason.IMAGE_FAILED if missing else ExitReason.START_FAILED

    def close(self) -> None:
        """End a container that is a child of the engine's daemon."""
        if self._setup is not None:
            cleanup.end_foreign(self._setup, self._folder.key)


def inner_pid(pid: int) -> int | None:
    """Return a process's pid in its own namespace if that is below ours; else None."""
    numbers, own = _pids(pid), _pids(os.getpid())
    return numbers[-1] if len(numbers) > len(own) else None


def _pids(pid: int) -> list[int]:
    """Return the pid in each namespace, ours first. The file is readable for all users."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - called for every process of a tree
            lines = file.read().split(b"\n")
    except OSError:
        return []
    line = next((line for line in lines if line.startswith(b"NSpid:")), b"NSpid:")
    return [int(text) for text in line.split()[1:]]


def processes(root: int) -> dict[int, int]:
    """Return the processes below ``root`` in containers, parents first: pid to the pid inside."""
    table = process_tree.scan()
    below = process_tree.descendants([root], process_tree.children_of(table))
    alive = process_tree.alive(below, table)
    return {pid: number for pid in below if pid in alive and (number := inner_pid(pid)) is not None}


def send_to_program(root: int, signals: Iterable[int], *, catching: bool = False) -> bool:
    """Signal the program's processes; return False if there are none yet. The init forwards nothing then."""
    table, found = process_tree.scan(), processes(root)
    program = [pid for pid, number in found.items() if number != 1] or list(found)
    for signum in signals:
        for pid in program:
            if pid in table and (not catching or process_tree.catches(pid, signum)):
                process_tree.send(table[pid], signum)
    return bool(program)


def send_to_foreground(root: int, signum: int) -> bool:
    """Signal the container's main process and its group; return False if there is none yet."""
    found = processes(root)
    main = min((pid for pid, number in found.items() if number != 1), key=lambda pid: found[pid], default=None)
    main = next(iter(found), None) if main is None else main
    if main is None:
        return False
    with contextlib.suppress(OSError):
        group = os.getpgid(main)
        if group in found:
            os.killpg(group, signum)
        else:
            os.kill(main, signum)
    return True
