"""Which sharing mode a program runs under."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.supervision import ProcessSpec
from gpupool.node.ports import SharingMode
from gpupool.node.sharing.advisory import AdvisorySharing
from gpupool.node.sharing.whole import WholeSharing

ENTRY_POINTS = "gpupool.sharing"


def sharing_for(spec: ProcessSpec, slices: str = AdvisorySharing.name) -> SharingMode:
    """The mode of a program: ``whole`` when no share is a part of a GPU, else the one named by ``slices``.

    Raises ``GpupoolError(UNSUPPORTED)`` when no mode of that name is installed.
    """
    return WholeSharing() if all(share.whole for share in spec.gpus) else sharing_mode(slices)


@cache
def sharing_mode(name: str) -> SharingMode:
    """The mode of that name: built in, or added by a package through the entry points ``gpupool.sharing``.

    Raises ``GpupoolError(UNSUPPORTED)`` for a name nobody has.
    """
    built_in: dict[str, type[SharingMode]] = {m.name: m for m in (WholeSharing, AdvisorySharing)}
    if name in built_in:
        return built_in[name]()
    points = entry_points(group=ENTRY_POINTS)
    if name not in points.names:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"No sharing mode is called '{name[:40]}'.",
            f"Installed: {', '.join(sorted(points.names | built_in.keys()))}.",
        )
    mode: SharingMode = points[name].load()()
    return mode
