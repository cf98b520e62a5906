"""Whole GPUs: no other program uses them, so the program only has to see the right ones."""

from __future__ import annotations

from typing import ClassVar

from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.sharing.stateless import StatelessSharing


class WholeSharing(StatelessSharing):
    """The mode for programs that hold whole GPUs, or none; they use the driver directly."""

    name: ClassVar[str] = "whole"

    def environment(self, spec: ProcessSpec) -> dict[str, str]:
        """Return the variables that show the program its GPUs and hide the others."""
        return self.visible(spec)

    def notes(self, spec: ProcessSpec) -> tuple[str, ...]:
        """Return only the note about emulated GPUs."""
        return self.emulation_note(spec)
