"""The first moments of a forked process that becomes a shepherd, and its last."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from gpupool.domain.supervision import ExitReason, ExitReport
from gpupool.node.child import become_subreaper
from gpupool.node.paths import ReplicaFolder, boot_id
from gpupool.node.record import Order, read_exit, write_exit
from gpupool.node.shepherd import Shepherd


def become_shepherd(path: Path, listener: socket.socket) -> NoReturn:
    """What a freshly forked process does for the rest of its life; the lock is among its descriptors."""
    folder = ReplicaFolder(path)
    try:
        os.setsid()
        _let_go_of_streams()
        become_subreaper()
        order = Order.read(folder)
        if order is not None and read_exit(folder) is None:
            Shepherd(folder, replace(order, boot_id=boot_id()), listener).run()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the agent will find us gone, and what is written here
        _failed(folder, error)
    finally:
        os._exit(0)


def _failed(folder: ReplicaFolder, error: BaseException) -> None:
    """Before the first record nothing has been started, and that is the end; after it the agent cleans up."""
    with contextlib.suppress(OSError):
        folder.failure.write_text(traceback.format_exc(), encoding="utf-8")
    if not folder.shepherd.exists():
        with contextlib.suppress(OSError):
            why = f"It could not be supervised: {error}"
            write_exit(folder, ExitReport(ExitReason.START_FAILED, None, None, why, time.time()))


def _let_go_of_streams() -> None:
    """The agent's terminal and pipes are not ours to hold open."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for target in (0, 1, 2):
        os.dup2(null, target)
    os.close(null)
