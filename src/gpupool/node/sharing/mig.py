"""MIG instances: the hardware isolates them, so the program only has to see the right one.

A program sees an instance by its UUID, which CUDA then uses.
"""

from __future__ import annotations

from typing import ClassVar

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.ports import NodeProgram, PreparedShare
from gpupool.node.sharing.stateless import StatelessSharing
from gpupool.node.sharing.variables import holds_instances

SEVERAL_NOTE = "CUDA uses the first of several MIG instances; a process for each sees the others by their UUIDs"


class MigSharing(StatelessSharing):
    """The mode for programs that hold whole MIG instances; they use the driver directly."""

    name: ClassVar[str] = "mig"

    def environment(self, spec: ProcessSpec) -> dict[str, str]:
        """Return the variables that show the program its instances and hide the others."""
        return self.visible(spec)

    def notes(self, spec: ProcessSpec) -> tuple[str, ...]:
        """Return notes for several instances and for emulated ones."""
        several = (SEVERAL_NOTE,) if len(spec.gpus) > 1 else ()
        return several + self.emulation_note(spec)

    async def prepare(self, program: NodeProgram) -> PreparedShare:
        """Return the variables; raise ``GpupoolError(UNSUPPORTED)`` if a share is not a whole MIG instance."""
        if not holds_instances(program.spec):
            raise GpupoolError(
                ErrorCode.UNSUPPORTED,
                "The sharing mode mig requires whole MIG instances.",
                "Request one by its profile (--model 3g.40gb) or by the word mig.",
            )
        return await super().prepare(program)
