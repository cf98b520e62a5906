"""A program that is a child of its shepherd."""

from __future__ import annotations

from gpupool.domain.errors import EXIT_NOT_EXECUTABLE
from gpupool.domain.work.program.supervision import ExitReason, ProcessSpec
from gpupool.node.host import cgroups
from gpupool.node.host.child import ProgramChild, StartError
from gpupool.node.host.paths import ReplicaFolder


class ProcessExecution:
    """Executes the program itself; the shepherd signals all processes below it."""

    extra_cgroups: tuple[str, ...] = ()
    helper_grace_s: float | None = None

    def __init__(self, folder: ReplicaFolder, spec: ProcessSpec) -> None:  # noqa: ARG002 - that of every execution
        self._image = spec.container is not None

    def check(self) -> None:
        """Raise ``StartError`` for a program with an image: it would run outside its container."""
        if self._image:
            raise StartError(EXIT_NOT_EXECUTABLE, "Could not start: the record of its container is missing")

    def child(self, plain: ProgramChild) -> ProgramChild:
        """Return the child as it is."""
        return plain

    def command_child(self, plain: ProgramChild) -> ProgramChild:
        """Return the child as it is."""
        return plain

    def send(self, signals: tuple[int, ...], *, catching: bool, ended: bool) -> bool:  # noqa: ARG002 - one of two ways
        """Return False: the shepherd signals all processes."""
        return False

    def send_to_foreground(self, signum: int) -> bool:  # noqa: ARG002 - one of two ways
        """Return False: the shepherd finds the foreground process group."""
        return False

    def on_helper_exit(self) -> bool:
        """Return False: other children are orphans of the program."""
        return False

    def out_of_memory(self, groups: tuple[str, ...]) -> bool:
        """Return True if the kernel has killed a process in these control groups for their memory limit."""
        return cgroups.out_of_memory(groups)

    def failed_to_start(self, status: int) -> ExitReason | None:  # noqa: ARG002 - the child is the program
        """Return None: the pipe of the exec reports what failed."""
        return None

    def close(self) -> None:
        """Do nothing: all processes are below the shepherd."""
