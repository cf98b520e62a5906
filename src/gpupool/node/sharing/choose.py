"""Which sharing mode a program runs under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.supervision import ProcessSpec
from gpupool.node.journal import say
from gpupool.node.ports import Counting, Prepared, Running, SharingHost, SharingMode, SliceCount
from gpupool.node.sharing.advisory import AdvisorySharing
from gpupool.node.sharing.mig import MigSharing, holds_instances
from gpupool.node.sharing.mps import MpsSharing
from gpupool.node.sharing.share import ShareSharing
from gpupool.node.sharing.whole import WholeSharing

ENTRY_POINTS = "gpupool.sharing"
DEFAULT_SLICES = ShareSharing.name


class SharingModes:
    """All modes of a node, and who runs under which.

    ``slices`` names the mode for parts of GPUs where the program's spec does not name one; where the node cannot use
    it, slices are advisory and say why. A mode is built when it is first needed.
    """

    def __init__(self, host: SharingHost, slices: str = DEFAULT_SLICES) -> None:
        self._host = host
        self._slices = slices
        self._modes: dict[str, SharingMode] = {}

    def mode(self, name: str) -> SharingMode:
        """The mode of that name; raises ``GpupoolError(UNSUPPORTED)`` for a name nobody has."""
        if name not in self._modes:
            self._modes[name] = mode_class(name)(self._host)
        return self._modes[name]

    def usable(self) -> tuple[str, ...]:
        """The names of the modes that can keep programs to parts of GPUs here, the default first."""
        default, _ = self._default()
        others = sorted(_BUILT_IN.keys() | entry_points(group=ENTRY_POINTS).names)
        names = dict.fromkeys((default.name, *others))
        return tuple(name for name in names if name not in _NOT_FOR_PARTS and not self._missing(name))

    def choose(self, spec: ProcessSpec) -> tuple[SharingMode, str]:
        """The mode of a program, and a note on why it is not another (mostly empty).

        Raises ``GpupoolError(UNSUPPORTED)`` when the spec names a mode that this node cannot use.
        """
        if not spec.gpus:
            return self.mode(WholeSharing.name), ""
        if spec.sharing:
            return self._asked(spec.sharing, spec), ""
        if holds_instances(spec):
            return self.mode(MigSharing.name), ""
        if all(share.whole for share in spec.gpus):
            return self.mode(WholeSharing.name), ""
        return self._default()

    def _asked(self, name: str, spec: ProcessSpec) -> SharingMode:
        mode = self.mode(name)
        why = mode.missing()
        if name == WholeSharing.name and not all(share.whole for share in spec.gpus):
            why = "A part of a GPU is not a whole one."
        if why:
            raise GpupoolError(
                ErrorCode.UNSUPPORTED,
                f"This node cannot share GPUs by the mode '{name[:40]}': {why}",
                f"Ask for one of: {', '.join(self.usable())}.",
            )
        return mode

    def _default(self) -> tuple[SharingMode, str]:
        mode = self.mode(self._slices)
        why = mode.missing()
        return (self.mode(AdvisorySharing.name), why) if why else (mode, "")

    def _missing(self, name: str) -> str:
        try:
            return self.mode(name).missing()
        except Exception as error:  # noqa: BLE001 - a package that cannot be loaded must not stop the node
            say("sharing mode not usable", mode=name, error=repr(error))
            return "it cannot be loaded"

    async def adopt(self, running: Sequence[tuple[str, Running]]) -> None:
        """Hand each program (with the name of its mode) to its mode; a mode without any learns that it has none."""
        for name in {self._slices, *_BUILT_IN, *(mode for mode, _ in running)}:
            if name and not self._missing(name):
                await self.mode(name).adopt([program for mode, program in running if mode == name])

    async def prepare(self, program: Running) -> Prepared:
        """Choose and prepare. Raises ``GpupoolError``; nothing is left then."""
        mode, why = self.choose(program.spec)
        prepared = await mode.prepare(program)
        return replace(prepared, notes=(*prepared.notes, why)) if why else prepared

    async def release(self, mode: str, program: Running) -> None:
        """No process of the program is left."""
        if mode and not self._missing(mode):
            await self.mode(mode).release(program)

    def helpers(self) -> frozenset[int]:
        """Processes that modes run on GPUs for programs, as MPS does: they are the pool's own."""
        return frozenset[int]().union(*(mode.helpers() for mode in list(self._modes.values())))

    def counts(self) -> dict[str, Mapping[str, SliceCount]]:
        """What modes counted of the use of slices, by the keys of programs, then by GPU."""
        return {
            key: by for mode in self._modes.values() if isinstance(mode, Counting) for key, by in mode.counts().items()
        }

    async def close(self) -> None:
        """The agent ends; programs run on."""
        for mode in self._modes.values():
            await mode.close()


_BUILT_IN: dict[str, type[SharingMode]] = {
    mode.name: mode for mode in (WholeSharing, ShareSharing, MpsSharing, MigSharing, AdvisorySharing)
}
_NOT_FOR_PARTS = frozenset({WholeSharing.name, MigSharing.name})


def mode_class(name: str) -> type[SharingMode]:
    """The class of a mode: built in, or added by a package through the entry points ``gpupool.sharing``.

    Raises ``GpupoolError(UNSUPPORTED)`` for a name nobody has.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    points = entry_points(group=ENTRY_POINTS)
    if name not in points.names:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"No sharing mode is called '{name[:40]}'.",
            f"Installed: {', '.join(sorted(points.names | _BUILT_IN.keys()))}.",
        )
    mode: type[SharingMode] = points[name].load()
    return mode
