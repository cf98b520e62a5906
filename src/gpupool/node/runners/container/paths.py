"""The paths of the pool's own files inside a container: below one folder that no volume may use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpupool.node.host import native

POOL_FOLDER = PurePosixPath("/run/gpupool")
NATIVE = POOL_FOLDER / "native"
RUN = POOL_FOLDER / "pool"


@dataclass(frozen=True, slots=True)
class ContainerPaths:
    """The mapping for one node: its run folder and its native libraries."""

    run_folder: Path

    def inside(self, path: str) -> str | None:
        """Return the path inside the container for one of the pool's own files; None for any other."""
        for folder, place in ((self.run_folder, RUN), (native.FOLDER, NATIVE)):
            if path.startswith("/") and Path(path).is_relative_to(folder):
                return str(place / Path(path).relative_to(folder))
        return None

    def moved(self, value: str) -> str:
        """Translate the pool's own paths in a variable, which may hold a list separated by colons."""
        return ":".join(self.inside(text) or text for text in value.split(":"))
