"""Stage-in: sends a workload's missing files to its node and has the folder created there."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import MAX_MANIFEST_BYTES, FilesSpec, tree_from_bytes, user_space
from gpupool.domain.work.workload import Workload
from gpupool.services.ports.adapters import Ports
from gpupool.services.ports.fabric import NodeLink
from gpupool.services.ports.files import BlobStore, FilesLink, Making

ASKED_AT_ONCE = 5_000
PIECE_BYTES = 1 << 20
TRIES = 4
FIRST_PAUSE_S = 0.02
MAX_PAUSE_S = 1.0

log = structlog.get_logger("gpupool.files")
Blobs = list[tuple[str, int]]


def files_of(workload: Workload) -> FilesSpec | None:
    """Return the spec of a workload's files for its node, or None."""
    program = workload.program
    return FilesSpec(user_space(workload.user), program.tree, workload.id, program.lock) if program.tree else None


class FolderStager:
    """Sends files to nodes, each tree to each node once at a time."""

    def __init__(self, ports: Ports, *, as_user: bool) -> None:
        self._ports = ports
        self._as_user = as_user
        self._bringing: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def bring(self, link: NodeLink, workload: Workload, wanted: Callable[[], bool]) -> None:
        """Send the workload's files and create its folder on the node; do nothing if it has no files.

        ``wanted`` is checked between steps. Raises ``GpupoolError``: NODE_UNREACHABLE if all contact is lost,
        WRONG_STATE if it is no longer wanted, else an error of the files or the node.
        """
        files = files_of(workload)
        if files is None:
            return
        for attempt in range(TRIES):
            try:
                await self._bring(link, workload, files, wanted)
            except GpupoolError as error:
                if error.code is not ErrorCode.NODE_UNREACHABLE or attempt == TRIES - 1:
                    raise
                log.warning("files not sent to the node", node=link.name, workload=workload.id, message=error.message)
                await link.notify("", None)  # raises without any contact
            else:
                return

    async def _bring(self, link: NodeLink, workload: Workload, files: FilesSpec, wanted: Callable[[], bool]) -> None:
        talk = await link.files()
        try:
            async with self._bringing[link.name, files.tree]:
                await self._send(talk, files, wanted)
            await self._make(talk, workload, files, wanted)
        finally:
            await talk.close()

    async def _send(self, talk: FilesLink, files: FilesSpec, wanted: Callable[[], bool]) -> None:
        store = self._store()
        manifest = await store.read(files.space, files.tree, 0, MAX_MANIFEST_BYTES)
        tree = await asyncio.to_thread(tree_from_bytes, manifest)
        blobs: Blobs = [(files.tree, len(manifest)), *tree.blobs().items()]
        for first in range(0, len(blobs), ASKED_AT_ONCE):
            page = blobs[first : first + ASKED_AT_ONCE]
            held = await talk.blob_missing(files.space, page)
            short = [
                (sha256, size, max(here, 0)) for (sha256, size), here in zip(page, held, strict=True) if here < size
            ]
            for pieces in _split(short):
                _need(wanted)
                await talk.blob_put(files.space, [await self._piece(files.space, *piece) for piece in pieces])

    async def _piece(self, space: str, sha256: str, size: int, offset: int, length: int) -> tuple[str, int, int, bytes]:
        return sha256, size, offset, await self._store().read(space, sha256, offset, length)

    async def _make(self, talk: FilesLink, workload: Workload, files: FilesSpec, wanted: Callable[[], bool]) -> None:
        uid = workload.uid if self._as_user else None
        pause_s = FIRST_PAUSE_S
        while await talk.tree_make(files, uid, dict(workload.program.env)) is not Making.MADE:
            _need(wanted)
            await self._ports.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    def _store(self) -> BlobStore:
        if self._ports.blobs is None:
            raise GpupoolError(ErrorCode.UNSUPPORTED, "This pool stores no files.", "")
        return self._ports.blobs


def _split(short: Sequence[tuple[str, int, int]]) -> list[list[tuple[str, int, int, int]]]:
    """Return pieces (digest, size, offset, length) in batches of about a MiB."""
    batches: list[list[tuple[str, int, int, int]]] = [[]]
    room = PIECE_BYTES
    for sha256, size, here in short:
        for offset in range(here, max(size, here + 1), PIECE_BYTES):
            length = min(PIECE_BYTES, size - offset)
            if batches[-1] and length > room:
                batches.append([])
                room = PIECE_BYTES
            batches[-1].append((sha256, size, offset, length))
            room -= length
    return [batch for batch in batches if batch]


def _need(wanted: Callable[[], bool]) -> None:
    if not wanted():
        raise GpupoolError(ErrorCode.WRONG_STATE, "It was stopped while its files were sent to the node.", "")
