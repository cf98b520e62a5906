"""MIG instances: walls in hardware that an administrator has put up, so showing the right one is all there is to do.

An instance is shown by the UUID the driver gave it; CUDA then uses that one. The layout of a card is never changed.
"""

from __future__ import annotations

from typing import ClassVar

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.supervision import ProcessSpec
from gpupool.node.ports import Prepared, Running
from gpupool.node.sharing.stateless import StatelessSharing

SEVERAL_NOTE = "CUDA uses the first of several MIG instances; a process for each sees the others by their UUIDs"
_PREFIX = "MIG-"


def holds_instances(spec: ProcessSpec) -> bool:
    """Whether a program holds whole MIG instances and nothing else."""
    return bool(spec.gpus) and all(share.whole and share.gpu_uuid.startswith(_PREFIX) for share in spec.gpus)


class MigSharing(StatelessSharing):
    """The mode for programs that hold whole MIG instances: nothing stands between them and the driver."""

    name: ClassVar[str] = "mig"

    def environment(self, spec: ProcessSpec) -> dict[str, str]:
        """The variables that show the program its instances and hide the others."""
        return self.visible(spec)

    def notes(self, spec: ProcessSpec) -> tuple[str, ...]:
        """What a program with several instances ought to know, and whether they are emulated."""
        several = (SEVERAL_NOTE,) if len(spec.gpus) > 1 else ()
        return several + self.emulation_note(spec)

    async def prepare(self, program: Running) -> Prepared:
        """The variables; raises ``GpupoolError(UNSUPPORTED)`` for what is not a whole MIG instance."""
        if not holds_instances(program.spec):
            raise GpupoolError(
                ErrorCode.UNSUPPORTED,
                "The sharing mode mig is for whole MIG instances.",
                "Ask for one by its profile (--model 3g.40gb) or by the word mig.",
            )
        return await super().prepare(program)
