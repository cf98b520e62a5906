"""Files for the other heads of the pool: the list of needed folders, and blobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.cluster.membership import ClusterMembers, check_member
from gpupool.services.ports.files import BlobStore, Folder

READ_BYTES = 1 << 20
GATHERED_BYTES = 1 << 18  # small contents are sent together
SIZE_BYTES = 8
NOT_HERE = (1 << 64) - 1


class HeadFiles:
    """The files of this head. ``members`` returns the machines of the cluster; ``needed`` raises on a standby."""

    def __init__(
        self,
        blobs: BlobStore | None,
        members: Callable[[], Awaitable[ClusterMembers]],
        needed: Callable[[], Sequence[Folder]],
    ) -> None:
        self._blobs = blobs
        self._members = members
        self._needed = needed

    async def check(self, node: str, secret: str) -> BlobStore:
        """Return the blob store to another head. Raises FORBIDDEN for a node, NODE_REMOVED, UNAUTHENTICATED."""
        found = check_member(node, secret, *await self._members())
        if not found.head:
            raise GpupoolError(
                ErrorCode.FORBIDDEN,
                "Only heads may read files; this machine is a node.",
                "",
            )
        if self._blobs is None:
            raise GpupoolError(ErrorCode.UNSUPPORTED, "This pool stores no files.", "")
        return self._blobs

    def needed(self) -> Sequence[Folder]:
        """Return the folders that live workloads need. Raises NOT_LEADING on a standby."""
        return self._needed()


def folders_in(live: Mapping[str, Collection[str]]) -> list[Folder]:
    """Return one folder for each tree of each space."""
    return [Folder(space, tree) for space, trees in live.items() for tree in trees]


async def sent(blobs: BlobStore, space: str, wanted: Sequence[tuple[str, int]]) -> AsyncIterator[bytes]:
    """Yield for each blob (digest, offset) its size in eight bytes, big-endian (all ones: missing), and its bytes.

    It ends early if a blob is deleted during the transfer; the reader has to count the bytes.
    """
    gathered = bytearray()
    sizes = await blobs.sizes(space, [sha256 for sha256, _ in wanted])
    for (sha256, offset), size in zip(wanted, sizes, strict=True):
        gathered += (NOT_HERE if size is None else size).to_bytes(SIZE_BYTES, "big")
        at = offset
        while size is not None and at < size:
            try:
                data = await blobs.read(space, sha256, at, min(READ_BYTES, size - at))
            except GpupoolError:
                data = b""
            if not data:
                return
            gathered += data
            at += len(data)
            if len(gathered) >= GATHERED_BYTES:
                yield bytes(gathered)
                gathered.clear()
    yield bytes(gathered)
