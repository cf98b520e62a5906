"""What tells the fabric of nodes: their names and the sockets that lead to their agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node's agent is reached from now on: a unix socket on this machine; None: the node is gone.

    Gone means that nobody expects it back, not that it does not answer: who answers is the fabric's business.
    """

    node: str
    socket: Path | None


class Directory(Protocol):
    """Names nodes."""

    def places(self) -> AsyncIterator[Place]:
        """First where each node is, then every change, for ever; the same said twice changes nothing."""
