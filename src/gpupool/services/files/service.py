"""Files that users send, and files of their workloads on nodes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Actor, Role
from gpupool.domain.work.program.file_tree import check_path, printable_path, user_space
from gpupool.domain.work.program.supervision import ListeningPort
from gpupool.domain.work.workload import Program, Workload
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.engine import Engine
from gpupool.services.control.lookup import Lookup
from gpupool.services.ports.fabric import AttachStream, NodeLink
from gpupool.services.ports.files import BlobStore, FilesLink, Found
from gpupool.services.state.service_registry import ServiceRegistry

SWEEP_EVERY_S = 3600.0
MAX_BLOBS_PER_QUERY = 20_000

T = TypeVar("T")

log = structlog.get_logger("gpupool.files")


class FileService:
    """Receives users' files, deletes unneeded ones, and lists the folders of workloads on nodes."""

    def __init__(self, engine: Engine, permissions: Permissions, lookup: Lookup, services: ServiceRegistry) -> None:
        self._services = services
        self._engine = engine
        self._permissions = permissions
        self._lookup = lookup
        self._blobs = engine.ports.blobs

    async def have(self, actor: Actor, blobs: Sequence[tuple[str, int]]) -> list[int]:
        """Return how many bytes of each (digest, size) the caller has sent before; files of others do not count."""
        if len(blobs) > MAX_BLOBS_PER_QUERY:
            raise GpupoolError(
                ErrorCode.TOO_LARGE, f"A request can have at most {MAX_BLOBS_PER_QUERY} files.", "Split it."
            )
        return await self._store(actor).have(user_space(actor.user), blobs)

    async def write(self, actor: Actor, sha256: str, size: int, offset: int, data: bytes) -> int:
        """Receive a piece of a large file; return how many bytes are here then."""
        store, space = self._store(actor), user_space(actor.user)
        return await self._adding(lambda: store.write(space, sha256, size, offset, data))

    async def put(self, actor: Actor, blobs: Sequence[bytes]) -> list[str]:
        """Receive whole small files; return their digests."""
        store, space = self._store(actor), user_space(actor.user)
        return await self._adding(lambda: store.put(space, blobs))

    async def _adding(self, add: Callable[[], Awaitable[T]]) -> T:
        """Add files; without space, delete unneeded files and try again once."""
        try:
            return await add()
        except GpupoolError as error:
            if error.code not in {ErrorCode.OVER_LIMIT, ErrorCode.DISK_FULL} or self._blobs is None:
                raise
        await self._blobs.sweep(self.live())
        return await add()

    async def finish(self, actor: Actor, sha256: str) -> int:
        """Complete a folder whose files were all sent; return its size in bytes. Raises NOT_FOUND if one is missing."""
        store, space = self._store(actor), user_space(actor.user)
        tree = await store.tree(space, sha256)
        wanted = list(tree.blobs().items())
        held = await store.have(space, wanted)
        if any(here != size for here, (_, size) in zip(held, wanted, strict=True)):
            raise GpupoolError(ErrorCode.NOT_FOUND, "Some files have not been sent.", "Send the remaining files.")
        await store.mark(space, sha256)
        return tree.total_bytes

    async def check(self, actor: Actor, program: Program) -> None:
        """Raise ``GpupoolError`` unless a program's files belong to the caller and contain the paths that it names."""
        if not program.tree:
            if program.lock:
                raise _refused("An environment needs a lock file in an uploaded folder; no folder was uploaded.")
            return
        if program.lock and program.container is not None:
            raise _refused("An image has its own environment; a lock file cannot be used with it.")
        store, space = self._store(actor), user_space(actor.user)
        if not await store.is_marked(space, program.tree):
            raise GpupoolError(
                ErrorCode.NOT_FOUND, "The files of this workload are not stored here.", "Send them again."
            )
        await store.mark(space, program.tree)
        tree = await store.tree(space, program.tree)
        if program.cwd and check_path(program.cwd) not in {folder.path for folder in tree.folders}:
            raise _refused(f"There is no folder '{printable_path(program.cwd)}' in the uploaded files.")
        if program.lock and check_path(program.lock) not in {file.path for file in tree.files}:
            raise _refused(f"There is no file '{printable_path(program.lock)}' in the uploaded files.")

    # Folders on nodes

    async def talk(self, actor: Actor, ref: str, index: int) -> tuple[FilesLink, str, int | None]:
        """Return a connection for files to the node of a replica, the id of its workload, and the user's account.

        Raises FORBIDDEN, and NOT_FOUND if it has no files or never started.
        """
        workload = await self._lookup.workload(actor, ref)
        self._permissions.need_see(actor, workload)
        replica = await self._lookup.replica(workload, index)
        if not workload.program.tree or replica.node is None:
            raise GpupoolError(
                ErrorCode.NOT_FOUND,
                f"{workload.name} has no folder on a node.",
                "Workloads have one if they were submitted with a folder and have started.",
            )
        link = self._engine.ports.fabric.link(replica.node)
        return await link.files(), workload.id, workload.uid

    async def list(self, actor: Actor, ref: str, index: int, path: str, after: str) -> list[Found]:
        """Return entries of the folder of a replica's workload after a path; empty if there are no more."""
        talk, workload, uid = await self.talk(actor, ref, index)
        try:
            return await talk.tree_list(workload, path, uid, after)
        finally:
            await talk.close()

    async def connect(self, actor: Actor, ref: str, index: int, port: int | str, *, activity: bool) -> AttachStream:
        """Open a stream to a port, or the path of a Unix socket, on which a replica's processes listen.

        Only for users who may attach to it.

        ``activity``: its bytes count as activity for the idle limit.
        """
        link, key = await self._placed(actor, ref, index)
        return await link.connect_port(key, port, activity=activity)

    async def listening_ports(self, actor: Actor, ref: str, index: int) -> Sequence[ListeningPort]:
        """Return the ports on which a replica's processes listen, for users who may attach to it."""
        link, key = await self._placed(actor, ref, index)
        return await link.listening_ports(key)

    async def attachable(self, actor: Actor, ref: str) -> Workload:
        """Return a workload that the user may attach to."""
        workload = await self._lookup.workload(actor, ref)
        self._permissions.need_manage(actor, workload)
        return workload

    async def _placed(self, actor: Actor, ref: str, index: int) -> tuple[NodeLink, str]:
        """Return the node of a replica that the user may attach to, and the replica's key. Raises WRONG_STATE."""
        workload = await self.attachable(actor, ref)
        replica = await self._lookup.replica(workload, index)
        if not replica.state.placed or replica.node is None:
            raise GpupoolError(ErrorCode.WRONG_STATE, f"{workload.name} is {replica.state}.", "See `gpupool ps`.")
        return self._engine.ports.fabric.link(replica.node), replica.key

    def _store(self, actor: Actor) -> BlobStore:
        self._permissions.need_role(actor, Role.MEMBER)
        if self._blobs is None:
            raise GpupoolError(ErrorCode.UNSUPPORTED, "This pool stores no files.", "Put them on the nodes.")
        return self._blobs

    async def run(self) -> None:
        """Run for ever: delete unneeded files."""
        while self._blobs is not None:
            try:
                await self._blobs.sweep(self.live())
            except (GpupoolError, OSError) as error:
                log.warning("files not swept", error=str(error))
            await self._engine.ports.sleep(SWEEP_EVERY_S)
        await asyncio.Event().wait()

    def live(self) -> dict[str, set[str]]:
        """Return the trees that live workloads and services need, by space."""
        live: defaultdict[str, set[str]] = defaultdict(set)
        for workload in self._engine.mirror.workloads.values():
            if workload.program.tree:
                live[user_space(workload.user)].add(workload.program.tree)
        for user, tree in self._services.trees():
            live[user_space(user)].add(tree)
        return live


def _refused(sentence: str) -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, sentence, "Run the command in the folder that contains it.")
