"""Attaching this terminal to something that already runs, or to a program started beside it."""

from __future__ import annotations

from typing import Any

from gpupool.cli.fast.gate import find_gate
from gpupool.cli.fast.launch import Launch
from gpupool.cli.fast.signals import Inbox
from gpupool.cli.fast.terminal import wants_terminal
from gpupool.cli.fast.waiting import Interrupted
from gpupool.cli.output import tell
from gpupool.cli.pool import Pool, workload_path
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.workload import WorkloadState


def attach_to(ref: str, index: int, *, tty: bool | None = None, stdin: bool = True) -> int:
    """Stay with a workload's program until it ends or Ctrl-P Ctrl-Q; its exit status. Raises ``GpupoolError``.

    Waits in the queue with it; leaving then does not cancel it.
    """
    gate = find_gate(start=False)
    with Inbox() as inbox:
        launch = Launch(gate, inbox, tty=wants_terminal(tty) if stdin else False)
        try:
            detail = launch.wait_for(ref, index)
        except Interrupted as stop:
            return 128 + stop.signum
        state = WorkloadState(detail["state"])
        if state.final:
            return launch.ended(detail)
        _say_keys(detail)
        return launch.attach(detail, index, detachable=True, stdin=stdin)


def _say_keys(detail: dict[str, Any]) -> None:
    tell(f"attached to {detail['name']}; Ctrl-P Ctrl-Q leaves it running")


def require_program(pool: Pool, ref: str) -> dict[str, Any]:
    """The workload if it has, or may get, a program; raises ``GpupoolError(WRONG_STATE)`` for a lease."""
    found: dict[str, Any] = pool.get(workload_path(ref))
    if found["kind"] == "lease":
        raise GpupoolError(
            ErrorCode.WRONG_STATE,
            f"{found['name']} is a lease: it has no program of its own.",
            f"'gpupool client --lease {found['name']} -- COMMAND' runs one on it.",
        )
    return found
