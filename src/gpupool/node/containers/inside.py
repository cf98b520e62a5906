"""A container's own processes, told from the engine's: they are in a pid namespace below ours."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from gpupool.node import proctree


def inner_pid(pid: int) -> int | None:
    """The pid of a process in the namespace that it was born in, if that is below ours; else None."""
    numbers, own = _pids(pid), _pids(os.getpid())
    return numbers[-1] if len(numbers) > len(own) else None


def _pids(pid: int) -> list[int]:
    """By namespace, ours first. World-readable, whoever the process is."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - called for every process of a tree
            lines = file.read().split(b"\n")
    except OSError:
        return []
    line = next((line for line in lines if line.startswith(b"NSpid:")), b"NSpid:")
    return [int(text) for text in line.split()[1:]]


def processes(root: int) -> dict[int, int]:
    """The processes below ``root`` that are in containers: pid to the pid inside."""
    table = proctree.scan()
    below = proctree.alive(proctree.descendants([root], proctree.children_of(table)), table)
    return {pid: number for pid in below if (number := inner_pid(pid)) is not None}


def send_to_program(root: int, signals: Iterable[int], *, catching: bool = False) -> bool:
    """Signal the program's processes; False where there are none (yet). The init passes on nothing then."""
    table, found = proctree.scan(), processes(root)
    program = {pid for pid, number in found.items() if number != 1} or set(found)
    for signum in signals:
        for pid in program:
            if pid in table and (not catching or proctree.catches(pid, signum)):
                proctree.send(table[pid], signum)
    return bool(program)


def send_to_foreground(root: int, signum: int) -> bool:
    """Signal the process that the container was started for, and its group; False where there is none (yet)."""
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
