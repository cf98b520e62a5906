"""Protocols for files: the blob store of a head, other heads, and the files of a node."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import FilesSpec, FileTree
from gpupool.domain.work.workspace import WorkspaceTask


class BlobStore(Protocol):
    """Blobs on the head, separate for each owner. Raises ``GpupoolError`` (DISK_FULL, OVER_LIMIT, INVALID_FILE)."""

    async def have(self, space: str, blobs: Sequence[tuple[str, int]]) -> list[int]:
        """Return how many bytes of each (digest, size) are here; -1 for an unknown blob."""

    async def write(self, space: str, sha256: str, size: int, offset: int, data: bytes) -> int:
        """Add a piece; return how many bytes are here then."""

    async def put(self, space: str, blobs: Sequence[bytes]) -> list[str]:
        """Store whole small blobs; return their digests."""

    async def read(self, space: str, sha256: str, offset: int, limit: int) -> bytes:
        """Return bytes of a blob; raises ``GpupoolError(NOT_FOUND)``."""

    async def sizes(self, space: str, digests: Sequence[str]) -> list[int | None]:
        """Return the size of each whole blob; None if it is not here."""

    async def tree(self, space: str, sha256: str) -> FileTree:
        """Return the tree of a manifest; raises NOT_FOUND, INVALID_FILE, TOO_LARGE."""

    async def mark(self, space: str, sha256: str) -> None:
        """Mark a tree as complete and used now."""

    async def is_marked(self, space: str, sha256: str) -> bool:
        """Return True if a tree is marked as complete."""

    async def sweep(self, live: Mapping[str, Collection[str]]) -> None:
        """Delete unneeded blobs; ``live`` has the trees that must stay, by space."""


@dataclass(frozen=True, slots=True, order=True)
class Folder:
    """A folder that was sent: the space of its owner (``trees.space_of``), and the SHA-256 of its manifest."""

    space: str
    tree: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a blob from another head, from ``offset`` on; ``size`` is that of the whole blob, None if missing."""

    sha256: str
    size: int | None
    offset: int
    data: bytes


class OtherHeads(Protocol):
    """The other heads of this pool. Raises ``GpupoolError``: POOL_UNREACHABLE, and errors of a head."""

    def names(self) -> Sequence[str]:
        """Return the names of all known heads."""

    async def needed(self, head: str) -> Sequence[Folder]:
        """Return the folders that live workloads need, from the leader; raises NOT_LEADING for a standby."""

    def contents(self, head: str, space: str, wanted: Sequence[tuple[str, int]]) -> AsyncGenerator[Piece, None]:
        """Yield a head's bytes of blobs (digest, offset), in this order; not yet compared with the digest."""


class Making(StrEnum):
    """The progress of a node with the folder of a workload."""

    MAKING = "making"
    MADE = "made"


@dataclass(frozen=True, slots=True)
class Found:
    """An entry of a workload's folder on a node; ``kind`` is file, folder or link. ``mtime`` is in seconds."""

    path: str
    kind: str
    size: int
    mtime: float
    mode: int = 0o644
    target: str = ""


class FilesLink(Protocol):
    """A separate connection to a node for files.

    Raises ``GpupoolError``: NODE_UNREACHABLE without contact, and errors of the node.
    """

    async def blob_missing(self, space: str, blobs: Sequence[tuple[str, int]]) -> list[int]:
        """Return how many bytes of each blob the node has, as ``BlobStore.have``."""

    async def blob_put(self, space: str, pieces: Sequence[tuple[str, int, int, bytes]]) -> list[int]:
        """Send pieces (digest, size, offset, bytes); return how many bytes of each it has then."""

    async def tree_make(self, files: FilesSpec, uid: int | None, env: dict[str, str]) -> Making:
        """Create a workload's folder and its environment; call again until it returns MADE."""

    async def tree_list(self, workload: str, path: str, uid: int | None, after: str) -> list[Found]:
        """Return entries of a workload's folder below ``path``, sorted, after a path; empty if there are no more."""

    async def tree_read(self, workload: str, path: str, uid: int | None, offset: int, limit: int) -> bytes:
        """Return bytes of a file there; empty at its end."""

    async def home_task(self, task: WorkspaceTask, workspace: str, uid: int | None) -> int | None:
        """Change a home; return the bytes of disk that the workspace uses then, None while the change is in progress.

        Call again until it is complete; a complete change is not repeated.
        """

    async def home_usage(self, workspace: str) -> int:
        """Return the bytes of disk that the home and the snapshots of a workspace use."""

    async def close(self) -> None:
        """Close the connection."""


def gone() -> GpupoolError:
    """Return the error for files that are not, or no longer, on the leader."""
    return GpupoolError(
        ErrorCode.NOT_FOUND,
        "The files are not on the leader: they have expired, or were sent to another head.",
        "Submit from the folder again.",
    )
