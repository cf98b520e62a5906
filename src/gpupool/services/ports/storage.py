"""The files that a pool stores on the machine of its control plane, as an adapter reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """One kind of stored files; ``bytes`` is None if this user may not read the folder.

    ``kept`` says how long or how much is kept. ``by_id`` are the bytes by workload or workspace, where files have one.
    """

    what: str
    path: str
    kept: str
    bytes: int | None
    complete: bool = True
    by_id: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Storage:
    """All kinds of files of a pool, and the space of their disk."""

    files: tuple[StoredFiles, ...]
    free_bytes: int
    total_bytes: int


class StorageReader(Protocol):
    """Reads the folders of a pool."""

    def read(self) -> Storage:
        """Return all kinds of files. Blocks for as long as it takes to read the folders. Raises OSError."""
