"""Base of modes that only set variables: nothing is prepared outside the environment, nothing is released."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

from gpupool.domain.nodes.sharing import describe_guarantee
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.ports import NodeProgram, PreparedShare, SharingHost
from gpupool.node.sharing.emulation import fake_driver, path_with_tools, tools_folder
from gpupool.node.sharing.preload import VARIABLE, Libraries
from gpupool.node.sharing.variables import EMULATED_NOTE, SIMULATED_NOTE, visible_gpus


class StatelessSharing:
    """A sharing mode that only adds variables and notes, which a subclass provides."""

    name: ClassVar[str]

    def __init__(self, host: SharingHost) -> None:
        self.host = host
        self._fake: Callable[[], tuple[Libraries, dict[str, str]] | None] = cache(partial(fake_driver, host))
        self._tools: Callable[[], Path | None] = cache(partial(tools_folder, host))

    def environment(self, spec: ProcessSpec) -> dict[str, str]:
        """Return variables to add to the program's environment."""
        raise NotImplementedError

    def notes(self, spec: ProcessSpec) -> tuple[str, ...]:
        """Return a sentence for each part of the allocation that is not enforced."""
        raise NotImplementedError

    def visible(self, spec: ProcessSpec) -> dict[str, str]:
        """Return the variables of all modes; emulated GPUs come with their fake driver if possible."""
        fake = self._fake() if spec.emulated and spec.gpus else None
        if fake is None:
            return visible_gpus(spec)
        libraries, environment = fake
        preload = {VARIABLE: libraries.preload(spec.env.get(VARIABLE, ""))}
        path = path_with_tools(spec, self._tools())
        return visible_gpus(spec, simulated=True) | environment | preload | path

    def emulation_note(self, spec: ProcessSpec) -> tuple[str, ...]:
        """Return the note about emulated GPUs."""
        if not spec.emulated or not spec.gpus:
            return ()
        return (EMULATED_NOTE if self._fake() is None else SIMULATED_NOTE,)

    def missing(self) -> str:
        """Return nothing: variables can always be set."""
        return ""

    async def adopt(self, running: Sequence[NodeProgram]) -> None:
        """Do nothing: there is no state."""

    async def prepare(self, program: NodeProgram) -> PreparedShare:
        """Return the variables and notes of the subclass."""
        spec = program.spec
        held = describe_guarantee(self.name, spec.compute) if spec.gpus else ""
        return PreparedShare(self.name, self.environment(spec), held, self.notes(spec))

    async def release(self, program: NodeProgram) -> None:
        """Do nothing: there is no state."""

    def helpers(self) -> frozenset[int]:
        """Return no processes."""
        return frozenset()

    async def close(self) -> None:
        """Do nothing: there is no state."""
