"""Many nodes in one process: each implements the agent's protocol on its own socket and runs no programs.

`python _stand_ins.py FOLDER FIRST COUNT GPUS (ends|lives)`: sockets FOLDER/NAME.sock. Each node measures itself once a
second, as a real one does: its GPUs, and every program that lives.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from _null_agent import LINE_LIMIT, NullAgent
from gpupool.domain.nodes.gpu import NodeReport
from gpupool.domain.nodes.telemetry import GpuSample, NodeSample, ReplicaSample
from gpupool.domain.protocol.node_json import sample_to_list
from gpupool.domain.work.program.supervision import ProcessPhase, ProcessStatus
from gpupool.node.inventory.emulated import EmulatedInventory

MOST_LOOKS = 60


class StandIn(NullAgent):
    """One node; control planes that watch hear of its ends."""

    def __init__(self, report: NodeReport, *, ends: bool) -> None:
        super().__init__(report, ends=ends)
        self.looks: list[tuple[int, str]] = []

    def _answer(self, method: str, params: dict[str, Any]) -> tuple[Any, ProcessStatus | None]:
        if method == "samples":
            return [text for number, text in self.looks if number > params["after"]], None
        return super()._answer(method, params)

    def look(self, now: float) -> None:
        """Return its measurements."""
        gpus = tuple(GpuSample(gpu.uuid, 50.0, 1000, 1, 70.0, 60, 1500, 5000) for gpu in self._report.gpus)
        alive = [s for s in self._statuses.values() if s.phase is not ProcessPhase.EXITED]
        rows = tuple(ReplicaSample(s.key, 50.0, 1000, 100.0, 500, 0, 0, 1, None, 1, s.epoch) for s in alive)
        look = NodeSample(self._report.name, int(now), now, 40.0, 8000, gpus, rows)
        self.looks = [*self.looks[1 - MOST_LOOKS :], (look.number, json.dumps(sample_to_list(look)))]


async def measure(agents: list[StandIn]) -> None:
    """Measure each node once a second, spread over the second."""
    while True:
        for agent in agents:
            agent.look(time.time())
            await asyncio.sleep(1.0 / len(agents))


async def run(folder: Path, agents: dict[str, StandIn]) -> None:
    """Serve until killed."""
    for name, agent in agents.items():
        path = folder / f"{name}.sock"
        path.unlink(missing_ok=True)
        await asyncio.start_unix_server(agent.serve, str(path), limit=LINE_LIMIT)
    print("ready", flush=True)
    await measure(list(agents.values()))


def main() -> None:
    """Start servers from the arguments."""
    folder, first, count, gpus, ending = sys.argv[1:6]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    names = [f"node{number:03d}" for number in range(int(first), int(first) + int(count))]
    reports = {name: EmulatedInventory.open(name, gpus).report() for name in names}
    agents = {name: StandIn(report, ends=ending == "ends") for name, report in reports.items()}
    asyncio.run(run(Path(folder), agents))


if __name__ == "__main__":
    main()
