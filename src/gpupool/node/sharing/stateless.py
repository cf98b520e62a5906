"""Modes that need nothing but variables: nothing is prepared outside the program's environment, nothing is released."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gpupool.domain.supervision import ProcessSpec
from gpupool.node.ports import GpuUsage, Prepared, Running, SharingHost


class StatelessSharing:
    """A sharing mode that says what to add to the environment; a subclass gives the texts."""

    name: ClassVar[str]

    def __init__(self, host: SharingHost) -> None:
        self.host = host

    def environment(self, spec: ProcessSpec) -> dict[str, str]:
        """Variables to add to the program's environment."""
        raise NotImplementedError

    def notes(self, spec: ProcessSpec) -> tuple[str, ...]:
        """What of the allocation is not enforced, one sentence each."""
        raise NotImplementedError

    def guarantee(self, spec: ProcessSpec) -> str:
        """What holds, in a sentence."""
        raise NotImplementedError

    def missing(self) -> str:
        """Nothing: variables can always be set."""
        return ""

    async def adopt(self, running: Sequence[Running]) -> None:
        """There is nothing to take over."""

    async def prepare(self, program: Running) -> Prepared:
        """The texts of the subclass."""
        spec = program.spec
        return Prepared(self.name, self.environment(spec), self.guarantee(spec), self.notes(spec))

    async def release(self, program: Running) -> None:
        """There is nothing to release."""

    def usage(self) -> tuple[GpuUsage, ...]:
        """Nothing is measured."""
        return ()

    async def close(self) -> None:
        """There is nothing to let go of."""
