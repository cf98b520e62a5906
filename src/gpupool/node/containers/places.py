"""Where the pool's own files are inside a container: below one folder that no volume may take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpupool.node import native

INSIDE = PurePosixPath("/run/gpupool")
NATIVE = INSIDE / "native"
RUN = INSIDE / "pool"


@dataclass(frozen=True, slots=True)
class Places:
    """Of one node: its run folder and its native parts."""

    run_folder: Path

    def inside(self, path: str) -> str | None:
        """Where one of the pool's own files is seen inside; None for any other."""
        for folder, place in ((self.run_folder, RUN), (native.FOLDER, NATIVE)):
            if path.startswith("/") and Path(path).is_relative_to(folder):
                return str(place / Path(path).relative_to(folder))
        return None

    def moved(self, value: str) -> str:
        """A variable's value, or a list in one, with the pool's own paths as they are inside."""
        return ":".join(self.inside(text) or text for text in value.split(":"))
