"""What the services need of whoever keeps files on the head, and of a node that is given them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.jobfiles import FilesSpec
from gpupool.domain.trees import Tree


class BlobStore(Protocol):
    """Blobs on the head, kept apart by owner. Raises ``GpupoolError`` (DISK_FULL, OVER_LIMIT, INVALID_FILE)."""

    async def have(self, space: str, blobs: Sequence[tuple[str, int]]) -> list[int]:
        """How many bytes of each (digest, size) are here: all of them where it is whole, -1 where nothing is."""

    async def write(self, space: str, sha256: str, size: int, offset: int, data: bytes) -> int:
        """Add a piece; how many bytes are here then."""

    async def put(self, space: str, blobs: Sequence[bytes]) -> list[str]:
        """Keep whole small blobs; their digests."""

    async def read(self, space: str, sha256: str, offset: int, limit: int) -> bytes:
        """Bytes of a blob; raises ``GpupoolError(NOT_FOUND)``."""

    async def sizes(self, space: str, digests: Sequence[str]) -> list[int | None]:
        """How many bytes each whole blob has; None: it is not here."""

    async def tree(self, space: str, sha256: str) -> Tree:
        """The tree of a manifest that is here; raises NOT_FOUND, INVALID_FILE, TOO_LARGE."""

    async def mark(self, space: str, sha256: str) -> None:
        """Note that a tree is whole, and used now."""

    async def is_marked(self, space: str, sha256: str) -> bool:
        """Whether it was noted."""

    async def sweep(self, live: Mapping[str, Collection[str]]) -> None:
        """Let go of what nothing needs any more; ``live`` are the trees that must stay, by space."""


@dataclass(frozen=True, slots=True, order=True)
class Folder:
    """A folder that was sent: whose files it is made of (``trees.space_of``), and its manifest's SHA-256."""

    space: str
    tree: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a blob that another head sends, from ``offset`` on; ``size`` is the whole blob's, None: it has not."""

    sha256: str
    size: int | None
    offset: int
    data: bytes


class OtherHeads(Protocol):
    """The other heads of this pool. Raises ``GpupoolError``: POOL_UNREACHABLE, and whatever a head says."""

    def names(self) -> Sequence[str]:
        """All that are known."""

    async def needed(self, head: str) -> Sequence[Folder]:
        """The folders that live work needs, as the head that leads knows; raises NOT_LEADING for one that waits."""

    def contents(self, head: str, space: str, wanted: Sequence[tuple[str, int]]) -> AsyncGenerator[Piece, None]:
        """What a head has of blobs (digest, offset), in this order; none of it has been compared with the digest."""


class Making(StrEnum):
    """How far a node is with the folder of a workload."""

    MAKING = "making"
    MADE = "made"


@dataclass(frozen=True, slots=True)
class Found:
    """One thing in a workload's folder on a node; ``kind`` is file, folder or link. ``mtime`` is in seconds."""

    path: str
    kind: str
    size: int
    mtime: float
    mode: int = 0o644
    target: str = ""


class FilesLink(Protocol):
    """A conversation with a node about files, on a connection of its own.

    Raises ``GpupoolError``: NODE_UNREACHABLE when the node cannot be asked, and what the node says.
    """

    async def blob_missing(self, space: str, blobs: Sequence[tuple[str, int]]) -> list[int]:
        """How many bytes of each blob the node has, as ``BlobStore.have``."""

    async def blob_put(self, space: str, pieces: Sequence[tuple[str, int, int, bytes]]) -> list[int]:
        """Give it pieces (digest, size, offset, bytes); how many bytes of each it has then."""

    async def tree_make(self, files: FilesSpec, uid: int | None, env: dict[str, str]) -> Making:
        """Have a workload's folder made, and its environment; ask again until it is MADE."""

    async def tree_list(self, workload: str, path: str, uid: int | None, after: str) -> list[Found]:
        """What is in a workload's folder below ``path``, in order, from after a path on; empty: there is no more."""

    async def tree_read(self, workload: str, path: str, uid: int | None, offset: int, limit: int) -> bytes:
        """Bytes of a file there; empty at its end."""

    async def close(self) -> None:
        """Hang up."""


def gone() -> GpupoolError:
    """The error of files that are not, or no longer, on the head that leads."""
    return GpupoolError(
        ErrorCode.NOT_FOUND,
        "The files are not kept here: they were sent long ago, or to a head that does not lead now.",
        "Submit from their folder again.",
    )
