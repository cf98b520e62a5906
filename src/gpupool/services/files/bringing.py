"""Bringing a workload's files to the node that is to run it: what the node lacks, then the folder made of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.jobfiles import FilesSpec
from gpupool.domain.trees import MOST_MANIFEST_BYTES, space_of, tree_from_bytes
from gpupool.domain.workload import Workload
from gpupool.services.files.ports import BlobStore, FilesLink, Making
from gpupool.services.ports import NodeLink, Ports

ASKED_AT_ONCE = 5_000
PIECE_BYTES = 1 << 20
TRIES = 4
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0

log = structlog.get_logger("gpupool.files")
Blobs = list[tuple[str, int]]


def files_of(workload: Workload) -> FilesSpec | None:
    """What a node has to be told of a workload's files; None: it has none."""
    program = workload.program
    return FilesSpec(space_of(workload.user), program.tree, workload.id, program.lock) if program.tree else None


class Bringer:
    """Brings files, each tree to each node once at a time."""

    def __init__(self, ports: Ports, *, as_user: bool) -> None:
        self._ports = ports
        self._as_user = as_user
        self._bringing: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def bring(self, link: NodeLink, workload: Workload, wanted: Callable[[], bool]) -> None:
        """Return once the node has the workload's folder; at once where it needs none.

        ``wanted`` is looked at between steps. Raises ``GpupoolError``: NODE_UNREACHABLE when all contact is lost,
        WRONG_STATE when it is not wanted any more, else what is wrong with the files or the node.
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
                log.warning("files not brought", node=link.name, workload=workload.id, message=error.message)
                await link.notify("", None)  # raises when there is no contact at all
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
        manifest = await store.read(files.space, files.tree, 0, MOST_MANIFEST_BYTES)
        tree = await asyncio.to_thread(tree_from_bytes, manifest)
        blobs: Blobs = [(files.tree, len(manifest)), *tree.blobs().items()]
        for first in range(0, len(blobs), ASKED_AT_ONCE):
            page = blobs[first : first + ASKED_AT_ONCE]
            held = await talk.blob_missing(files.space, page)
            short = [
                (sha256, size, max(here, 0)) for (sha256, size), here in zip(page, held, strict=True) if here < size
            ]
            for pieces in _cut(short):
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
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _store(self) -> BlobStore:
        if self._ports.blobs is None:
            raise GpupoolError(ErrorCode.UNSUPPORTED, "This pool keeps no files.", "")
        return self._ports.blobs


def _cut(short: Sequence[tuple[str, int, int]]) -> list[list[tuple[str, int, int, int]]]:
    """Pieces (digest, size, offset, length) in parcels of about a MiB."""
    parcels: list[list[tuple[str, int, int, int]]] = [[]]
    room = PIECE_BYTES
    for sha256, size, here in short:
        for offset in range(here, max(size, here + 1), PIECE_BYTES):
            length = min(PIECE_BYTES, size - offset)
            if parcels[-1] and length > room:
                parcels.append([])
                room = PIECE_BYTES
            parcels[-1].append((sha256, size, offset, length))
            room -= length
    return [parcel for parcel in parcels if parcel]


def _need(wanted: Callable[[], bool]) -> None:
    if not wanted():
        raise GpupoolError(ErrorCode.WRONG_STATE, "It was ended while its files were brought to the node.", "")
