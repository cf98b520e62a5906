"""The real control plane over the sockets of a folder: `python _pool.py SOCKETS --state-dir DIR`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gpupool.daemon import control_plane
from gpupool.fabric.machines import MachinesFabric, Place
from gpupool.services.ports import Ports


class FolderDirectory:
    """A node for every ``NAME.sock``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def places(self) -> AsyncIterator[Place]:
        """Those that are there when it begins."""
        for path in sorted(self._folder.glob("*.sock")):
            yield Place(path.stem, path)
        await asyncio.Event().wait()


def main() -> int:
    """As the control plane's own."""
    folder, *rest = sys.argv[1:]
    ports_of_one_machine = control_plane._ports  # noqa: SLF001 - its nodes are not those that have joined

    def ports(*wanted: Any) -> Ports:
        made = ports_of_one_machine(*wanted)
        made.fabric = MachinesFabric(FolderDirectory(Path(folder)))
        return made

    control_plane._ports = ports  # noqa: SLF001 - the one place where a fabric is chosen
    return control_plane.main(rest)


if __name__ == "__main__":
    raise SystemExit(main())
