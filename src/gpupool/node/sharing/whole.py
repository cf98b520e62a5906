"""Whole GPUs: nobody else is on them, so showing the program the right ones is all there is to do."""

from __future__ import annotations

from typing import ClassVar

from gpupool.domain.supervision import ProcessSpec
from gpupool.node.sharing.stateless import StatelessSharing
from gpupool.node.sharing.variables import EMULATED_NOTE, visible_gpus

WHOLE_GUARANTEE = "Nobody else is on its GPUs; nothing stands between the program and the driver."


class WholeSharing(StatelessSharing):
    """The mode for programs that hold whole GPUs, or none: no library is loaded, nothing is slowed."""

    name: ClassVar[str] = "whole"

    def environment(self, spec: ProcessSpec) -> dict[str, str]:
        """The variables that show the program its GPUs and hide the others."""
        return visible_gpus(spec)

    def notes(self, spec: ProcessSpec) -> tuple[str, ...]:
        """Nothing but whether the GPUs are emulated."""
        return (EMULATED_NOTE,) if spec.emulated and spec.gpus else ()

    def guarantee(self, spec: ProcessSpec) -> str:
        """That nobody else is on the GPUs."""
        return WHOLE_GUARANTEE if spec.gpus else ""
