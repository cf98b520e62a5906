"""The Protocols of the connections to nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpupool.domain.errors import ErrorCode
from gpupool.domain.nodes.gpu import Gpu, GpuShare, NodeReport
from gpupool.domain.nodes.telemetry import NodeSample
from gpupool.domain.protocol.log_records import LogBatch
from gpupool.domain.work.program.supervision import ListeningPort, ProcessSpec, ProcessStatus
from gpupool.services.ports.files import FilesLink


class AttachStream(Protocol):
    """A raw, bidirectional byte stream to a program's shepherd (the framing is ``domain.frames``)."""

    async def read(self, limit: int) -> bytes:
        """Read up to ``limit`` bytes; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Write all data; wait while the other side is slow."""

    async def close(self) -> None:
        """Close the stream."""


# The command did not reach its node, or the node did not accept it from this control plane; the work is not at fault.
NOT_SENT = frozenset({ErrorCode.NODE_UNREACHABLE, ErrorCode.NOT_LEADING, ErrorCode.DATABASE_UNREACHABLE})


class NodeLink(Protocol):
    """The connection to one node's agent. Raises ``GpupoolError(NODE_UNREACHABLE)`` without contact.

    Commands raise DATABASE_UNREACHABLE while another control plane may lead, and NOT_LEADING if the node follows one.
    """

    name: str

    @property
    def socket(self) -> Path | None:
        """Return the unix socket on this machine that leads to the agent; None if there is none."""

    async def report(self) -> NodeReport:
        """Return the machine and its GPUs in their present state."""

    async def gpus(self) -> Sequence[Gpu]:
        """Return the GPUs with new readings of health, foreign processes and use."""

    async def create_mig_instance(self, card: str, profile: str) -> NodeReport:
        """Create a MIG instance on a card, both as in ``NodeReport.mig_cards``; return the new report.

        Raises FORBIDDEN, WRONG_STATE, INVALID_REQUEST, UNSUPPORTED, INTERNAL; nothing has changed then.
        """

    async def remove_mig_instance(self, uuid: str) -> NodeReport:
        """Destroy a MIG instance that the pool created; return the new report.

        Raises WRONG_STATE while a program or a process uses it, NOT_FOUND, FORBIDDEN, UNSUPPORTED, INTERNAL.
        """

    async def samples(self, after: int) -> Sequence[NodeSample]:
        """Return the samples after a number, oldest first; all that it has, if the number is unknown.

        The result is limited; a caller that is behind asks again.
        """

    async def list(self) -> Sequence[ProcessStatus]:
        """Return all programs that the agent knows, also ended ones that are not forgotten."""

    async def spec(self, key: str) -> ProcessSpec:
        """Return the spec of a program; raises NOT_FOUND."""

    async def start(self, spec: ProcessSpec) -> ProcessStatus:
        """Start a program, or return its status if this key was started before."""

    async def attach_gpus(self, key: str, epoch: int, shares: Sequence[GpuShare]) -> None:
        """Give GPUs to a lazy program, under the epoch of their lease; repetitions change nothing.

        Ignores a program that has ended. Raises NOT_FOUND, STALE_WRITE for an older epoch.
        """

    async def suspend(self, key: str, epoch: int, grace_s: float) -> None:
        """Suspend a program that has the GPUs of this lease; return at once. Ignore unknown keys and other epochs.

        Its status says later that the GPUs are returned, or why they are not (``not_suspended``). A call of the driver
        that does not end within ``grace_s`` prevents a suspension.
        """

    async def reserve_ports(
        self, key: str, address: str, count: int, wanted: Sequence[int] = ()
    ) -> tuple[tuple[int, ...], str]:
        """Reserve ports of the node for the program with this key, and return them with the name of the interface.

        Free ports of ``wanted`` are preferred.
        """

    async def stop(self, key: str, grace_s: float, notice: dict[str, Any] | None = None) -> None:
        """Send TERM, then KILL after the grace period, to the process tree; return at once. Ignore unknown keys.

        With ``notice``, the program first gets it and its notice signal.
        """

    async def end(self, key: str, grace_s: float) -> None:
        """Stop a program for a user, also while the database cannot confirm that this control plane leads."""

    async def notify(self, key: str, notice: dict[str, Any] | None) -> None:
        """Give a notice to a program that continues, or withdraw it (None). Ignore unknown keys."""

    async def signal(self, key: str, signum: int) -> None:
        """Send a signal to the program's foreground process group."""

    async def forget(self, key: str, *, delete_logs: bool = False) -> None:
        """Confirm that the end is in the store, so that the agent does not report it again."""

    async def read_log(self, key: str, cursor: str, limit: int) -> Sequence[LogBatch]:
        """Return about ``limit`` bytes of output from ``cursor`` (empty: the start); empty if there is no more now."""

    async def tail_log(self, key: str, lines: int) -> str:
        """Return the cursor that is about ``lines`` lines before the end."""

    async def attach(self, key: str) -> AttachStream:
        """Open a stream to the program's shepherd."""

    async def images(self, what: str, **params: Any) -> Any:
        """Call an operation on container images: ``list``, ``put``, ``import``, ``pull``, ``job`` or ``remove``."""

    async def files(self) -> FilesLink:
        """Open a separate connection for files."""

    async def connect_port(self, key: str, port: int | str, *, activity: bool) -> AttachStream:
        """Open a stream to a port, or the path of a Unix socket, on which a process of the program listens.

        Raises WRONG_STATE, NOT_FOUND.

        ``activity``: its bytes count as activity of the program. An empty ``write`` ends the sending side; ``read`` is
        empty once when the port has ended its own, and again when the connection is closed.
        """

    async def check_command(self, key: str, argv: Sequence[str], timeout_s: float) -> str:
        """Execute a command where a program runs; return its problem, empty if it ends with status 0 in time.

        Raises WRONG_STATE, NOT_FOUND, INVALID_REQUEST.
        """

    async def listening_ports(self, key: str) -> Sequence[ListeningPort]:
        """Return the ports on which processes of the program listen; raises WRONG_STATE, NOT_FOUND.

        Those of the process that started first are at the beginning.
        """


@dataclass(frozen=True, slots=True)
class FabricEvent:
    """An event from a node: a program changed (``status``), or the node connected or disconnected (``up``)."""

    node: str
    status: ProcessStatus | None = None
    up: bool | None = None


class Fabric(Protocol):
    """Discovery of nodes and their events."""

    async def start(self) -> None:
        """Start to connect; nodes are announced by events."""

    def link(self, node: str) -> NodeLink:
        """Return the link of an announced node; raises NODE_UNREACHABLE for another."""

    def events(self) -> AsyncIterator[FabricEvent]:
        """Yield events for ever. After each (re)connection the node is announced as ``up`` and must be reconciled."""

    async def close(self) -> None:
        """Disconnect from all nodes; their programs continue to run."""
