"""The real control plane over the sockets of a folder: `python _pool.py SOCKETS --state-dir DIR`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from gpupool.daemon import control_plane
from gpupool.daemon.config import PoolConfig
from gpupool.domain.protocol.fencing import Leadership
from gpupool.fabric.machines import MachinesFabric, NodePlace
from gpupool.services.ports.adapters import Ports
from gpupool.store import SqlStore


class FolderDirectory:
    """A node for every ``NAME.sock``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def places(self) -> AsyncIterator[NodePlace]:
        """Yield the nodes whose sockets exist at the start."""
        for path in sorted(self._folder.glob("*.sock")):
            yield NodePlace(path.stem, path)
        await asyncio.Event().wait()


def main() -> int:
    """Run the control plane with these nodes."""
    folder, *rest = sys.argv[1:]
    ports_of_one_machine = control_plane._ports  # noqa: SLF001 - its nodes are not those that have joined

    def ports(config: PoolConfig, store: SqlStore, lead: Leadership) -> Ports:
        made = ports_of_one_machine(config, store, lead)
        made.fabric = MachinesFabric(FolderDirectory(Path(folder)), lead, made.clock)
        return made

    control_plane._ports = ports  # noqa: SLF001 - the one place where a fabric is chosen
    return control_plane.main(rest)


if __name__ == "__main__":
    raise SystemExit(main())
