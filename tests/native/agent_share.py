"""A real agent whose emulated GPUs and share library are those built from the present sources."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "node"))

from node_harness import Node, eventually, spec

from gpupool.domain.nodes.gpu import GpuShare
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.host import process_tree
from gpupool.node.inventory.emulated import emulated_uuid

UUID = emulated_uuid("n1", 0)
MIB = 1 << 20
T4_MIB = 16384

# What every program of these tests begins with. `real`: the fake driver by its path, round the share library.
PRELUDE = """
import os, sys, time
from cuda.bindings import driver as d
def ok(answer):
    assert answer[0] == 0, answer
    return answer[1] if len(answer) > 1 else None
def context():
    ok(d.cuInit(0))
    device = ok(d.cuDeviceGet(0))
    ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(device))))
    return device
def fill(mib=64):
    got = 0
    while d.cuMemAlloc(mib << 20)[0] == 0:
        got += mib
    return got
def say(*words):
    print(*words, flush=True)
"""


class _OwnNode(Node):
    """Of one user only: the folder that the native parts are built in is closed to others."""

    def command(self) -> list[str]:
        return [word for word in super().command() if word != "--shared"]


@contextmanager
def node_with(native: Path) -> Iterator[Node]:
    """Yield an agent that uses these native files."""
    before = os.environ.get("GPUPOOL_NATIVE")
    os.environ["GPUPOOL_NATIVE"] = str(native)
    try:
        node = _OwnNode().up()
        try:
            yield node
        finally:
            node.destroy()
    finally:
        if before is None:
            del os.environ["GPUPOOL_NATIVE"]
        else:
            os.environ["GPUPOOL_NATIVE"] = before


def program(text: str, *, permille: int = 100, lease: int = 0, env: dict[str, str] | None = None) -> ProcessSpec:
    """Return the spec of a Python program on a part of the emulated T4."""
    share = GpuShare(UUID, 0, permille, T4_MIB * permille // 1000)
    made = {"PATH": os.environ["PATH"], **(env or {})}
    return spec(sys.executable, "-c", PRELUDE + text, gpus=(share,), lease=lease, env=made)


def said(node: Node, key: str) -> list[str]:
    """Return the lines that a program has written."""
    return node.log(key).decode().splitlines()


def until_said(node: Node, key: str, word: str) -> list[str]:
    """Wait for a line that begins so."""
    return eventually(lambda: [line for line in said(node, key) if line.startswith(word)], f"{key} says {word}")


def notes_with(node: Node, key: str, words: str) -> list[str]:
    """Return the notes on a program that contain these words."""
    status = node.status(key)
    return [] if status is None else [note for note in status.notes if words in note]


def events(node: Node, name: str) -> list[dict[str, object]]:
    """Return the entries of one kind in the agent's log."""
    lines = (json.loads(line) for line in (node.root / "agent.log").read_text().splitlines() if line.startswith("{"))
    return [line for line in lines if line.get("event") == name]


def arbiter_pid(node: Node) -> int | None:
    """Return the arbiter of a node's agent."""
    assert node.process is not None
    own = [p for p in process_tree.scan().values() if p.ppid == node.process.pid and p.state not in "ZX"]
    return next((p.pid for p in own if b"gpupool-arbiter" in command_line(p.pid)), None)


def command_line(pid: int) -> bytes:
    """Return the command of a process; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
