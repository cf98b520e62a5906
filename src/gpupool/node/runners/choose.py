"""Which runner a node uses."""

from __future__ import annotations

from importlib.metadata import entry_points

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.node.ports import Runner
from gpupool.node.runners.process import ProcessRunner

ENTRY_POINTS = "gpupool.runners"


def open_runner(name: str) -> Runner:
    """The runner of that name: built in, or added by a package through the entry points ``gpupool.runners``.

    Raises ``GpupoolError(UNSUPPORTED)`` for a name nobody has.
    """
    if name == ProcessRunner.name:
        return ProcessRunner()
    points = entry_points(group=ENTRY_POINTS)
    if name not in points.names:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"No runner is called '{name[:40]}'.",
            f"Installed: {', '.join(sorted(points.names | {ProcessRunner.name}))}.",
        )
    runner: Runner = points[name].load()()
    return runner
