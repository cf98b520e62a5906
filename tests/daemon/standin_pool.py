"""Pools whose agent and control plane are small stand-ins, in folders of their own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpupool.daemon.config import PoolConfig, PoolKind, save_config
from gpupool.daemon.process import launch
from gpupool.daemon.process.ready import StartResult
from gpupool.daemon.process.record import read_record

STANDINS = Path(__file__).parent / "standins"


def eventually(condition: Callable[[], object], timeout_s: float = 20.0) -> bool:
    """Return whether a condition becomes true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def start(config: PoolConfig, *, background: bool = True, stall_s: float = launch.STALL_S) -> StartResult:
    """Start a pool; what it says while it is waited for is not of interest."""
    return launch.start(config, lambda _text: None, background=background, stall_s=stall_s)


class StandInPool:
    """The options of a pool of stand-ins, and what its children have left as marks."""

    def __init__(self, folder: Path) -> None:
        self.marks = folder / "marks"
        state, run = folder / "state", folder / "state" / "run"
        commands = {
            "agent": (sys.executable, str(STANDINS / "agent.py"), str(self.marks)),
            "control-plane": (
                sys.executable,
                str(STANDINS / "control_plane.py"),
                str(self.marks),
                str(run / "api.sock"),
            ),
        }
        kind = PoolKind.USER if no_root() else PoolKind.SYSTEM
        self.config = PoolConfig(str(state), str(run), kind, commands=commands)

    def with_agent(self, code: str) -> PoolConfig:
        """Return the options with an agent that leaves its mark and then runs code."""
        mark = f"import os\nprint('agent', os.getpid(), file=open({str(self.marks)!r}, 'a'), flush=True)\n"
        return self.with_command("agent", sys.executable, "-S", "-c", mark + code)

    def with_command(self, name: str, *command: str) -> PoolConfig:
        """Return the options with one child replaced."""
        return replace(self.config, commands={**self.config.commands, name: command})

    def save(self) -> None:
        """Write the options where a start without options finds them."""
        Path(self.config.state_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
        save_config(self.config)

    def started(self, name: str) -> list[int]:
        """Return the pids of all lives of a child."""
        if not self.marks.exists():
            return []
        lines = (line.split() for line in self.marks.read_text().splitlines())
        return [int(pid) for child, pid in lines if child == name]

    @property
    def supervisor_pid(self) -> int | None:
        """Return the pid of the running supervisor."""
        record = read_record(self.config.state_dir)
        return record.supervisor.pid if record and record.alive else None


def alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def no_root() -> bool:
    """Return whether file permissions apply to this process."""
    return os.geteuid() != 0
