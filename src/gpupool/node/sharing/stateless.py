"""Modes that need nothing but variables: nothing is prepared outside the program's environment, nothing is released."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import ClassVar

from gpupool.domain.sharing import guarantee
from gpupool.domain.supervision import ProcessSpec
from gpupool.node.ports import Prepared, Running, SharingHost
from gpupool.node.sharing.emulation import fake_driver
from gpupool.node.sharing.preload import VARIABLE, Libraries
from gpupool.node.sharing.variables import EMULATED_NOTE, SIMULATED_NOTE, visible_gpus


class StatelessSharing:
    """A sharing mode that says what to add to the environment; a subclass gives the texts."""

    name: ClassVar[str]

    def __init__(self, host: SharingHost) -> None:
        self.host = host
        self._fake: Callable[[], tuple[Libraries, dict[str, str]] | None] = cache(partial(fake_driver, host))

    def environment(self, spec: ProcessSpec) -> dict[str, str]:
        """Variables to add to the program's environment."""
        raise NotImplementedError

    def notes(self, spec: ProcessSpec) -> tuple[str, ...]:
        """What of the allocation is not enforced, one sentence each."""
        raise NotImplementedError

    def visible(self, spec: ProcessSpec) -> dict[str, str]:
        """The variables that every mode sets; emulated GPUs come with the driver that simulates them, where it is."""
        fake = self._fake() if spec.emulated and spec.gpus else None
        if fake is None:
            return visible_gpus(spec)
        libraries, environment = fake
        preload = {VARIABLE: libraries.preload(spec.env.get(VARIABLE, ""))}
        return visible_gpus(spec, simulated=True) | environment | preload

    def emulation_note(self, spec: ProcessSpec) -> tuple[str, ...]:
        """What a program ought to know of emulated GPUs."""
        if not spec.emulated or not spec.gpus:
            return ()
        return (EMULATED_NOTE if self._fake() is None else SIMULATED_NOTE,)

    def missing(self) -> str:
        """Nothing: variables can always be set."""
        return ""

    async def adopt(self, running: Sequence[Running]) -> None:
        """There is nothing to take over."""

    async def prepare(self, program: Running) -> Prepared:
        """The texts of the subclass."""
        spec = program.spec
        held = guarantee(self.name, spec.compute) if spec.gpus else ""
        return Prepared(self.name, self.environment(spec), held, self.notes(spec))

    async def release(self, program: Running) -> None:
        """There is nothing to release."""

    def helpers(self) -> frozenset[int]:
        """There are none."""
        return frozenset()

    async def close(self) -> None:
        """There is nothing to let go of."""
