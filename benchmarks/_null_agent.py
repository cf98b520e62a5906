"""A node that runs no programs: it implements the agent's protocol, and reports that programs end at once, or never.

`python _null_agent.py SOCKET NAME GPUS (ends|lives)`. It is used to measure a real control plane alone, with its
real socket and database.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from gpupool.domain.decode import decode
from gpupool.domain.nodes.gpu import NodeReport
from gpupool.domain.protocol.node_json import gpu_to_dict, report_to_dict
from gpupool.domain.work.program.supervision import ExitReason, ExitReport, ProcessPhase, ProcessSpec, ProcessStatus
from gpupool.node.inventory.emulated import EmulatedInventory

LINE_LIMIT = 8 << 20


class NullAgent:
    """Answers like an agent; keeps statuses only in memory."""

    def __init__(self, report: NodeReport, *, ends: bool) -> None:
        self._report = report
        self._ends = ends
        self._statuses: dict[str, ProcessStatus] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one control plane until it disconnects."""
        while line := await reader.readline():
            request = json.loads(line)
            result, event = self._answer(request["method"], request.get("params") or {})
            writer.write(json.dumps({"id": request["id"], "result": result}).encode() + b"\n")
            if event is not None:
                writer.write(json.dumps({"event": "status", "status": event.to_dict()}).encode() + b"\n")
            await writer.drain()

    def _answer(self, method: str, params: dict[str, Any]) -> tuple[Any, ProcessStatus | None]:
        if method == "start":
            return self._start(decode(ProcessSpec, params["spec"]))
        if method == "forget":
            self._statuses.pop(params["key"], None)
        elif method == "stop" and params["key"] in self._statuses:
            return None, self._end(self._statuses[params["key"]], ExitReason.STOPPED)
        answers: dict[str, Any] = {
            "report": lambda: report_to_dict(self._report),
            "gpus": lambda: [gpu_to_dict(gpu) for gpu in self._report.gpus],
            "list": lambda: [status.to_dict() for status in self._statuses.values()],
        }
        return answers[method]() if method in answers else None, None

    def _start(self, spec: ProcessSpec) -> tuple[Any, ProcessStatus | None]:
        now = time.time()
        status = ProcessStatus(
            spec.key, spec.epoch, ProcessPhase.RUNNING, 1, now, attach_path="/null", last_active_at=now
        )
        self._statuses[spec.key] = status
        return status.to_dict(), self._end(status, ExitReason.EXITED) if self._ends else None

    def _end(self, status: ProcessStatus, reason: ExitReason) -> ProcessStatus:
        report = ExitReport(reason, 0, None, "", time.time())
        ended = ProcessStatus(status.key, status.epoch, ProcessPhase.EXITED, 1, status.started_at, report)
        self._statuses[status.key] = ended
        return ended


async def run(socket: Path, agent: NullAgent) -> None:
    """Serve until killed."""
    server = await asyncio.start_unix_server(agent.serve, str(socket), limit=LINE_LIMIT)
    await server.serve_forever()


def main() -> None:
    """Start a server from the arguments."""
    socket, name, gpus, ending = sys.argv[1:5]
    report = EmulatedInventory.open(name, gpus).report()
    Path(socket).unlink(missing_ok=True)
    asyncio.run(run(Path(socket), NullAgent(report, ends=ending == "ends")))


if __name__ == "__main__":
    main()
