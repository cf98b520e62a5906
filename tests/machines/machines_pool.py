"""The real control plane, with nodes that a file names: `python machines_pool.py NODES.json control-plane options...`.

The file is read again and again: a node that is put in joins, one that is taken out leaves. With HASTY in the
environment silence is noticed and certain within seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from gpupool.daemon import control_plane
from gpupool.daemon.cluster import leader
from gpupool.daemon.config import PoolConfig
from gpupool.domain.protocol import fencing
from gpupool.domain.protocol.fencing import Leadership
from gpupool.fabric.local import link
from gpupool.fabric.machines import MachinesFabric, NodePlace
from gpupool.scheduling import policy
from gpupool.services.ports.adapters import Ports
from gpupool.store import SqlStore

LOOK_EVERY_S = 0.1


class FileDirectory:
    """``{"name": "socket", ...}``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def places(self) -> AsyncIterator[NodePlace]:
        known: dict[str, str] = {}
        while True:
            now = json.loads(self._path.read_bytes())
            for name in known.keys() | now.keys():
                if known.get(name) != now.get(name):
                    yield NodePlace(name, Path(now[name]) if name in now else None)
            known = now
            await asyncio.sleep(LOOK_EVERY_S)


def hasten() -> None:
    link.PING_EVERY_S, link.SILENT_S = 0.5, 3.0
    policy.BOUNDS["node_lost_after_s"] = (1.0, *policy.BOUNDS["node_lost_after_s"][1:])
    leader.PING_EVERY_S = 0.4
    fencing.FENCE_GRACE_S, fencing.PROOF_LIFETIME_S, fencing.FENCE_MARGIN_S = 1.0, 3.0, 2.0


def main() -> int:
    if os.environ.get("HASTY"):
        hasten()
    nodes, *rest = sys.argv[1:]
    ports_of_one_machine = control_plane._ports

    def ports(config: PoolConfig, store: SqlStore, lead: Leadership) -> Ports:
        made = ports_of_one_machine(config, store, lead)
        made.fabric = MachinesFabric(FileDirectory(Path(nodes)), lead, made.clock)
        return made

    control_plane._ports = ports
    return control_plane.main(rest)


if __name__ == "__main__":
    raise SystemExit(main())
