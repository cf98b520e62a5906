"""Whole GPUs: nobody else is on them, so showing the program the right ones is all there is to do."""

from __future__ import annotations

from typing import ClassVar

from gpupool.domain.supervision import ProcessSpec
from gpupool.node.sharing.stateless import StatelessSharing


class WholeSharing(StatelessSharing):
    """The mode for programs that hold whole GPUs, or none: nothing stands between them and the driver."""

    name: ClassVar[str] = "whole"

    def environment(self, spec: ProcessSpec) -> dict[str, str]:
        """The variables that show the program its GPUs and hide the others."""
        return self.visible(spec)

    def notes(self, spec: ProcessSpec) -> tuple[str, ...]:
        """Nothing but whether the GPUs are emulated."""
        return self.emulation_note(spec)
