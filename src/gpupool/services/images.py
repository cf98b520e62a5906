"""Images of the pool's nodes: whoever may run them sees them; administrators bring them in and remove them.

An image runs as whoever names it, so a name that everybody uses must not be anybody's to give.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.domain.access import Actor, Role
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.gpu import NodeState
from gpupool.domain.images import allowed, check_image, full_name
from gpupool.domain.workload import Workload
from gpupool.services.engine import Engine
from gpupool.services.nodebook import NodeBook
from gpupool.services.permissions import Permissions
from gpupool.services.register import Register


@dataclass(frozen=True, slots=True)
class NodeImages:
    """What a node has; ``error`` says why it is not known."""

    node: str
    images: tuple[dict[str, Any], ...] = ()
    error: str = ""


class ImageService:
    """Asks nodes; keeps nothing itself."""

    def __init__(self, engine: Engine, book: NodeBook, permissions: Permissions, register: Register) -> None:
        self._engine = engine
        self._book = book
        self._permissions = permissions
        self._register = register

    async def list(self) -> Sequence[NodeImages]:
        """The images of all nodes that answer, by node."""
        return [await self._of(node.name) for node in self._book.all() if node.state is not NodeState.DOWN]

    async def _of(self, node: str) -> NodeImages:
        try:
            return NodeImages(node, tuple(await self._ask(node, "list")))
        except GpupoolError as error:
            return NodeImages(node, error=error.message)

    async def put(self, actor: Actor, node: str, upload: str, offset: int, data: bytes) -> int:
        """Bring a piece of an archive to a node; how much is there now. For administrators."""
        self._permissions.need_role(actor, Role.ADMIN)
        text = base64.b64encode(data).decode("ascii")
        return int(await self._ask(node, "put", upload=upload, offset=offset, data=text))

    async def import_archive(self, actor: Actor, node: str, upload: str, name: str) -> str:
        """Have a node take in an archive that was brought to it; the name of the job. For administrators."""
        if name:
            check_image(name)
        return await self._begin(actor, node, f"image {name or upload} imported", "import", upload=upload, name=name)

    async def pull(self, actor: Actor, node: str, name: str) -> str:
        """Have a node fetch an image; the name of the job. For administrators."""
        check_image(name)
        return await self._begin(actor, node, f"image {full_name(name)} fetched", "pull", name=name)

    async def _begin(self, actor: Actor, node: str, what: str, method: str, **params: Any) -> str:
        self._permissions.need_role(actor, Role.ADMIN)
        job = str(await self._ask(node, method, **params))
        await self._note(actor, node, what)
        return job

    async def job(self, actor: Actor, node: str, job: str) -> dict[str, Any]:
        """``done`` and ``names`` of a job. Raises what it raised."""
        self._permissions.need_role(actor, Role.ADMIN)
        return dict(await self._ask(node, "job", job=job))

    async def remove(self, actor: Actor, node: str, name: str) -> None:
        """Remove an image from a node. For administrators."""
        self._permissions.need_role(actor, Role.ADMIN)
        check_image(name)
        await self._ask(node, "remove", name=name)
        await self._note(actor, node, f"image {name} removed")

    async def _ask(self, node: str, what: str, **params: Any) -> Any:
        return await self._engine.ports.fabric.link(self._book.get(node).name).images(what, **params)

    async def _note(self, actor: Actor, node: str, message: str) -> None:
        event = Event(self._engine.ports.clock.now(), actor.user, Reason.CHANGED, message, target=f"node {node}")
        await self._engine.transact(lambda draft: draft.note(event))

    # -- rules -------------------------------------------------------------------------------------------------------

    def check(self, workload: Workload) -> None:
        """Raise ``GpupoolError(FORBIDDEN)`` for an image or a volume that the project's rules do not allow."""
        rules = self._register.project(workload.project).rules
        own = [workload.program.container, *(role.container for role in workload.roles)]
        for container in own:
            if container is None:
                continue
            if not allowed(container.image, rules.images):
                raise GpupoolError(
                    ErrorCode.FORBIDDEN,
                    f"The project {workload.project} does not allow the image {full_name(container.image)}.",
                    f"It allows: {', '.join(rules.images)}.",
                )
            for volume in container.volumes:
                if volume.source and rules.volumes and not _within(volume.source, rules.volumes):
                    raise GpupoolError(
                        ErrorCode.FORBIDDEN,
                        f"The project {workload.project} does not allow volumes of {volume.source}.",
                        f"It allows folders in: {', '.join(rules.volumes)}.",
                    )


def _within(source: str, roots: Sequence[str]) -> bool:
    return any(source == root or source.startswith(f"{root.rstrip('/')}/") for root in roots)
