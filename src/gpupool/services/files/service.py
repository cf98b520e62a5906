"""Taking in what people send, and letting go of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from gpupool.domain.access import Actor, Role
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.trees import check_path, shown, space_of
from gpupool.domain.workload import Program
from gpupool.services.engine import Engine
from gpupool.services.files.ports import BlobStore, FilesLink, Found
from gpupool.services.lookup import Lookup
from gpupool.services.permissions import Permissions
from gpupool.services.ports import AttachStream

SWEEP_EVERY_S = 3600.0
MOST_ASKED = 20_000  # blobs in one question

T = TypeVar("T")

log = structlog.get_logger("gpupool.files")


class FileService:
    """Everybody's own files, and what their work has made of them on the nodes."""

    def __init__(self, engine: Engine, permissions: Permissions, lookup: Lookup) -> None:
        self._engine = engine
        self._permissions = permissions
        self._lookup = lookup
        self._blobs = engine.ports.blobs

    async def have(self, actor: Actor, blobs: Sequence[tuple[str, int]]) -> list[int]:
        """How many bytes of each (digest, size) the caller has sent before; nobody else's count."""
        if len(blobs) > MOST_ASKED:
            raise GpupoolError(ErrorCode.TOO_LARGE, f"At most {MOST_ASKED} files are asked for at once.", "Ask again.")
        return await self._store(actor).have(space_of(actor.user), blobs)

    async def write(self, actor: Actor, sha256: str, size: int, offset: int, data: bytes) -> int:
        """Take a piece of a large file; how many bytes are here then."""
        store, space = self._store(actor), space_of(actor.user)
        return await self._adding(lambda: store.write(space, sha256, size, offset, data))

    async def put(self, actor: Actor, blobs: Sequence[bytes]) -> list[str]:
        """Take small files as a whole."""
        store, space = self._store(actor), space_of(actor.user)
        return await self._adding(lambda: store.put(space, blobs))

    async def _adding(self, add: Callable[[], Awaitable[T]]) -> T:
        """Add; where there is no room, let go of what nothing needs and try again, once."""
        try:
            return await add()
        except GpupoolError as error:
            if error.code not in {ErrorCode.OVER_LIMIT, ErrorCode.DISK_FULL} or self._blobs is None:
                raise
        await self._blobs.sweep(self.live())
        return await add()

    async def finish(self, actor: Actor, sha256: str) -> int:
        """Take a list of files whose contents were all sent; how many bytes they are. Raises NOT_FOUND if not."""
        store, space = self._store(actor), space_of(actor.user)
        tree = await store.tree(space, sha256)
        wanted = list(tree.blobs().items())
        held = await store.have(space, wanted)
        if any(here != size for here, (_, size) in zip(held, wanted, strict=True)):
            raise GpupoolError(ErrorCode.NOT_FOUND, "Not all of the files have been sent.", "Send the rest.")
        await store.mark(space, sha256)
        return tree.total_bytes

    async def check(self, actor: Actor, program: Program) -> None:
        """Raise ``GpupoolError`` unless a program's files are the caller's and hold what it names of them."""
        if not program.tree:
            if program.lock:
                raise _refused("An environment is made from a file of the folder that was sent; none was.")
            return
        if program.lock and program.container is not None:
            raise _refused("An image brings its own environment; none is made of a lock file for it.")
        store, space = self._store(actor), space_of(actor.user)
        if not await store.is_marked(space, program.tree):
            raise GpupoolError(
                ErrorCode.NOT_FOUND, "The files of this work are not kept here (any more).", "Send them again."
            )
        await store.mark(space, program.tree)
        tree = await store.tree(space, program.tree)
        if program.cwd and check_path(program.cwd) not in {folder.path for folder in tree.folders}:
            raise _refused(f"There is no folder '{shown(program.cwd)}' in what was sent.")
        if program.lock and check_path(program.lock) not in {file.path for file in tree.files}:
            raise _refused(f"There is no file '{shown(program.lock)}' in what was sent.")

    # What work has made of them

    async def talk(self, actor: Actor, ref: str, index: int) -> tuple[FilesLink, str, int | None]:
        """A conversation with the node of a replica, the workload whose folder it works in, and its user's account.

        Raises FORBIDDEN, NOT_FOUND where it came without files or never started.
        """
        workload = await self._lookup.workload(actor, ref)
        self._permissions.need_see(actor, workload)
        replica = await self._lookup.replica(workload, index)
        if not workload.program.tree or replica.node is None:
            raise GpupoolError(
                ErrorCode.NOT_FOUND,
                f"{workload.name} has no folder on a node.",
                "Work that was sent over a network with its folder has one, once it has started.",
            )
        link = self._engine.ports.fabric.link(replica.node)
        return await link.files(), workload.id, workload.uid

    async def list(self, actor: Actor, ref: str, index: int, path: str, after: str) -> list[Found]:
        """What is in the folder of a replica's workload, from after a path on; empty when there is no more."""
        talk, workload, uid = await self.talk(actor, ref, index)
        try:
            return await talk.tree_list(workload, path, uid, after)
        finally:
            await talk.close()

    async def connect(self, actor: Actor, ref: str, index: int, port: int) -> AttachStream:
        """A stream to a port on which a replica's processes listen; for those who may attach to it."""
        workload = await self._lookup.workload(actor, ref)
        self._permissions.need_manage(actor, workload)
        replica = await self._lookup.replica(workload, index)
        if not replica.state.placed or replica.node is None:
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{workload.name} is {replica.state}.", "See `gpupool ps`.")
        return await self._engine.ports.fabric.link(replica.node).connect_port(replica.key, port)

    def _store(self, actor: Actor) -> BlobStore:
        self._permissions.need_role(actor, Role.MEMBER)
        if self._blobs is None:
            raise GpupoolError(ErrorCode.UNSUPPORTED, "This pool keeps no files.", "Put them where its machines look.")
        return self._blobs

    async def run(self) -> None:
        """Sweep for ever."""
        while self._blobs is not None:
            try:
                await self._blobs.sweep(self.live())
            except (GpupoolError, OSError) as error:
                log.warning("files not swept", error=str(error))
            await self._engine.ports.sleep(SWEEP_EVERY_S)
        await asyncio.Event().wait()

    def live(self) -> dict[str, set[str]]:
        """The trees that live work needs, by space."""
        live: defaultdict[str, set[str]] = defaultdict(set)
        for workload in self._engine.mirror.workloads.values():
            if workload.program.tree:
                live[space_of(workload.user)].add(workload.program.tree)
        return live


def _refused(sentence: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, "Run the command in the folder that has it.")
