"""Waiting until a lease is granted, as ``run`` waits for its program."""

from __future__ import annotations

from typing import Any

from gpupool.cli.fast.gate import find_gate
from gpupool.cli.fast.launch import FINAL, Launch
from gpupool.cli.fast.signals import Inbox
from gpupool.cli.fast.waiting import Interrupted


def take_lease(body: dict[str, Any], *, quiet: bool) -> dict[str, Any] | int:
    """The lease once it is held, or the exit status when there will be none. Raises ``GpupoolError``."""
    gate = find_gate(start=True)
    with Inbox() as inbox:
        launch = Launch(gate, inbox, tty=False, quiet=quiet)
        try:
            lease = launch.submit_and_wait(body)
        except Interrupted as stop:
            return 128 + stop.signum
        return launch.ended(lease) if lease["state"] in FINAL else lease
