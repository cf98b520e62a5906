"""What a head gives to the other heads of its pool, and to nobody else: which folders are needed, and contents."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.heads import MemberKey
from gpupool.services.files.ports import BlobStore, Folder

READ_BYTES = 1 << 20
GATHERED_BYTES = 1 << 18  # small contents are sent together
SIZE_BYTES = 8
NOT_HERE = (1 << 64) - 1


class HeadFiles:
    """The files of this head. ``members`` are the machines of the cluster, ``needed`` raises where this head waits."""

    def __init__(
        self,
        blobs: BlobStore | None,
        members: Callable[[], Awaitable[Iterable[MemberKey]]],
        needed: Callable[[], Sequence[Folder]],
    ) -> None:
        self._blobs = blobs
        self._members = members
        self._needed = needed

    async def check(self, node: str, secret: str) -> BlobStore:
        """The files, for a machine that is a head. Raises UNAUTHENTICATED; FORBIDDEN for one that is a mere node."""
        digest = hashlib.sha256(secret.encode()).hexdigest()
        found = next((member for member in await self._members() if member.node == node), None)
        if found is None or not hmac.compare_digest(found.secret_sha256, digest):
            raise GpupoolError(
                ErrorCode.UNAUTHENTICATED, "This machine is not known here.", "It has left or been removed: join again."
            )
        if not found.head:
            raise GpupoolError(
                ErrorCode.FORBIDDEN,
                "Files are given to heads only; this machine is a node.",
                "",
            )
        if self._blobs is None:
            raise GpupoolError(ErrorCode.UNSUPPORTED, "This pool keeps no files.", "")
        return self._blobs

    def needed(self) -> Sequence[Folder]:
        """The folders that live work needs. Raises NOT_LEADING where this head waits."""
        return self._needed()


def folders_in(live: Mapping[str, Collection[str]]) -> list[Folder]:
    """Trees by space, one by one."""
    return [Folder(space, tree) for space, trees in live.items() for tree in trees]


async def sent(blobs: BlobStore, space: str, wanted: Sequence[tuple[str, int]]) -> AsyncIterator[bytes]:
    """Of each blob (digest, offset) its size in eight bytes, big-endian (all ones: not here), and what follows offset.

    It ends early where a blob is dropped meanwhile: whoever reads counts.
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
