"""Going on with a program after the way to it through the pool has broken: nothing that it says or hears is lost."""

from __future__ import annotations

import base64
import os
from time import monotonic

from gpupool.cli.fast import notice
from gpupool.cli.fast.launch import FINAL, replica_of
from gpupool.cli.fast.terminal import STDERR, STDOUT
from gpupool.domain import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpupool.cli.fast.launch import Launch
    from gpupool.cli.fast.pump import Outcome, Pump

    Detail = dict[str, Any]

PAUSE_S = 0.5
LOOK_S = 0.2
PAGES_LIMIT = 10_000


def come_back(launch: Launch, detail: Detail, index: int, pump: Pump) -> Outcome:
    """Connect again until the program has ended, somebody leaves, or it takes too long; raises ``Interrupted``."""
    notice.say(f"the connection to {detail['name']} broke; connecting again")
    attempt, deadline, outcome = replica_of(detail, index).get("attempt"), monotonic() + launch.gate.returns_s, None
    while monotonic() < deadline:
        launch.line.pause(PAUSE_S)
        detail = launch.look(detail["id"], "started", LOOK_S, index=index)
        if detail["state"] in FINAL or replica_of(detail, index).get("attempt") != attempt:
            break
        sock = launch.connect(detail, index)
        if sock is None:
            continue
        heard = pump.frames_heard
        try:
            outcome = pump.again(sock)
        finally:
            sock.close()
        if not outcome.broken:
            return outcome
        if pump.frames_heard > heard:
            deadline = monotonic() + launch.gate.returns_s
    _show_rest(launch, detail["id"], index, attempt, pump)
    return outcome or pump.outcome


def _show_rest(launch: Launch, workload: str, index: int, attempt: object, pump: Pump) -> None:
    """What a program that is over said while nobody heard it, from its log."""
    left = {"out": pump.seen[frames.STDOUT], "err": pump.seen[frames.STDERR]}
    target, cursor = f"/v1/workloads/{workload}/logs?index={index}&attempt={attempt}", ""
    for _ in range(PAGES_LIMIT):
        answer = launch.line.ask("GET", f"{target}&cursor={cursor}")
        if not answer.ok or not answer.body["chunks"]:
            return
        for chunk in answer.body["chunks"]:
            data, known = base64.b64decode(chunk["data"]), left[chunk["stream"]]
            left[chunk["stream"]] = max(0, known - len(data))
            _write(STDOUT if chunk["stream"] == "out" else STDERR, data[known:])
        cursor = answer.body["cursor"]


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
