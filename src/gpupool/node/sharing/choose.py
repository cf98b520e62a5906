"""Selection of the sharing mode of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoints, entry_points

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.sharing import LAZY_MODE, UNENFORCED, Sharing, mode_of_whole, traits_of
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.host.log import log_event
from gpupool.node.ports import (
    Attaching,
    Counting,
    NodeProgram,
    PreparedShare,
    SharingHost,
    SharingMode,
    SliceCount,
    Suspending,
)
from gpupool.node.sharing.variables import ADVISORY_NOTE, holds_instances

ENTRY_POINTS = "gpupool.sharing"
DEFAULT_SLICES = Sharing.SHARE.value
# Prefix of a node's warning and of a program's note; the reason and the remedy follow. `gpupool run` matches it
# (cli/fast/progress.py).
NOT_ENFORCED = "slices are not enforced: "


class SharingModes:
    """All modes of a node.

    ``slices`` names the mode for parts of GPUs when the program's spec names none. If the node cannot use it, slices
    are advisory and a note says why. A mode is created when it is first needed.
    """

    def __init__(self, host: SharingHost, slices: str = DEFAULT_SLICES) -> None:
        self._host = host
        self._slices = slices
        self._modes: dict[str, SharingMode] = {}
        self._points = entry_points(group=ENTRY_POINTS)  # read once: this reads the metadata of all packages

    def mode(self, name: str) -> SharingMode:
        """Return the mode of that name; raise ``GpupoolError(UNSUPPORTED)`` for an unknown name."""
        if name not in self._modes:
            self._modes[name] = _load(name, self._points)(self._host)
        return self._modes[name]

    def usable(self, *, partitioned: bool) -> tuple[str, ...]:
        """Return the names of the modes that a request can name here, the default for parts of GPUs first.

        ``partitioned``: GPUs of this node are partitioned into instances.
        """
        default, _ = self._default()
        names = dict.fromkeys((default.name, *sorted(self._points.names)))
        return tuple(name for name in names if _is_offered(name, partitioned=partitioned) and not self._missing(name))

    def why_advisory(self) -> str:
        """Return why slices are only advisory on this node; empty when its default mode works."""
        return self._default()[1]

    def choose(self, spec: ProcessSpec) -> tuple[SharingMode, str]:
        """Return the mode of a program, and the reason if nothing on this node can enforce its slice.

        Raises ``GpupoolError(UNSUPPORTED)`` when the spec names a mode that this node cannot use.
        """
        if spec.separate_gpus:
            return self._asked(LAZY_MODE.value, spec), ""
        if spec.gpus and spec.sharing:
            mode = self._asked(spec.sharing, spec)
            return mode, "" if traits_of(mode.name).enforced else self.why_advisory()
        if all(share.whole for share in spec.gpus):
            return self.mode(mode_of_whole(partitioned=holds_instances(spec)).value), ""
        return self._default()

    def _asked(self, name: str, spec: ProcessSpec) -> SharingMode:
        mode = self.mode(name)
        why = mode.missing()
        if not traits_of(name).supports_parts and not all(share.whole for share in spec.gpus):
            why = "The request is for a part of a GPU."
        if why:
            raise GpupoolError(
                ErrorCode.UNSUPPORTED,
                f"This node cannot use the sharing mode '{name[:40]}': {why}",
                f"Request one of: {', '.join(self.usable(partitioned=holds_instances(spec)))}.",
            )
        return mode

    def _default(self) -> tuple[SharingMode, str]:
        mode = self.mode(self._slices)
        why = mode.missing()
        return (self.mode(UNENFORCED.value), why) if why else (mode, "")

    def _missing(self, name: str) -> str:
        try:
            return self.mode(name).missing()
        except Exception as error:  # noqa: BLE001 - a package that cannot be loaded must not stop the node
            log_event("sharing mode not usable", mode=name, error=repr(error))
            return "it cannot be loaded"

    async def adopt(self, running: Sequence[tuple[str, NodeProgram]]) -> None:
        """Pass each program (with the name of its mode) to its mode; call modes without programs too."""
        for name in {self._slices, *self._points.names, *(mode for mode, _ in running)}:
            if name and not self._missing(name):
                await self.mode(name).adopt([program for mode, program in running if mode == name])

    async def prepare(self, program: NodeProgram) -> PreparedShare:
        """Choose a mode and prepare the program. Raises ``GpupoolError``; nothing is left then."""
        mode, why = self.choose(program.spec)
        prepared = await mode.prepare(program)
        if not why:
            return prepared
        notes = (note for note in prepared.notes if note != ADVISORY_NOTE)
        return replace(prepared, notes=(*notes, f"{NOT_ENFORCED}{why}"))

    def attach(self, mode: str, program: NodeProgram) -> None:
        """Give the GPUs of its spec to a lazy program. Raises OSError, ``GpupoolError``."""
        found = self.mode(mode)
        if isinstance(found, Attaching):
            found.attach(program)

    def wanted_at(self, mode: str, program: NodeProgram) -> float | None:
        """Return when a lazy program first used CUDA; None: not yet."""
        found = self.mode(mode)
        return found.wanted_at(program) if isinstance(found, Attaching) else None

    def in_use(self, mode: str, program: NodeProgram) -> bool:
        """Return whether a process of a lazy program's lease uses CUDA."""
        found = self.mode(mode)
        return not isinstance(found, Attaching) or found.in_use(program)

    def detach(self, mode: str, program: NodeProgram, pids: Callable[[], frozenset[int]]) -> bool:
        """Take the GPUs from a lazy program; False if a process can still use them. Raises OSError."""
        found = self.mode(mode)
        return isinstance(found, Attaching) and found.detach(program, pids)

    def suspending(self, mode: str) -> Suspending | None:
        """Return the mode if it can suspend programs."""
        found = self.mode(mode)
        return found if isinstance(found, Suspending) else None

    async def release(self, mode: str, program: NodeProgram) -> None:
        """Clean up after the last process of the program."""
        if mode and not self._missing(mode):
            await self.mode(mode).release(program)

    def helpers(self) -> frozenset[int]:
        """Return the modes' own processes on GPUs, such as MPS servers, which are not foreign."""
        return frozenset[int]().union(*(mode.helpers() for mode in list(self._modes.values())))

    def counts(self) -> dict[str, Mapping[str, SliceCount]]:
        """Return the use of slices that modes counted, by program key, then by GPU."""
        return {
            key: by for mode in self._modes.values() if isinstance(mode, Counting) for key, by in mode.counts().items()
        }

    async def close(self) -> None:
        """Stop with the agent; programs continue to run."""
        for mode in self._modes.values():
            await mode.close()


def mode_class(name: str) -> type[SharingMode]:
    """Return the class of a mode of an installed package, found by the entry points ``gpupool.sharing``.

    Raises ``GpupoolError(UNSUPPORTED)`` for an unknown name.
    """
    return _load(name, entry_points(group=ENTRY_POINTS))


def _is_offered(name: str, *, partitioned: bool) -> bool:
    """Return True for modes for parts of GPUs, and where GPUs are partitioned, for their instances."""
    traits = traits_of(name)
    return traits.supports_parts or (traits.partitioned and partitioned)


def _load(name: str, points: EntryPoints) -> type[SharingMode]:
    if name not in points.names:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"Unknown sharing mode '{name[:40]}'.",
            f"Installed: {', '.join(sorted(points.names))}.",
        )
    mode: type[SharingMode] = points[name].load()
    return mode
