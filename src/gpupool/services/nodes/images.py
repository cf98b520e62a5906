"""Container images on the nodes: all users see them; only administrators import, pull and remove them.

An image runs with the rights of the user who names it, so other users must not be able to replace it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.gpu import NodeState
from gpupool.domain.people.access import Actor, Role
from gpupool.domain.work.program.container import check_image, full_image_name, is_image_allowed
from gpupool.domain.work.workload import Workload
from gpupool.services.access.permissions import Permissions
from gpupool.services.control.engine import Engine
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.state.node_registry import NodeRegistry


@dataclass(frozen=True, slots=True)
class NodeImages:
    """The images of a node, or the ``error`` that prevented the list."""

    node: str
    images: tuple[dict[str, Any], ...] = ()
    error: str = ""


class ImageService:
    """Lists, imports, pulls and removes images on nodes; stores nothing itself."""

    def __init__(
        self, engine: Engine, nodes: NodeRegistry, permissions: Permissions, identities: IdentityCache
    ) -> None:
        self._engine = engine
        self._nodes = nodes
        self._permissions = permissions
        self._identities = identities

    async def list(self) -> Sequence[NodeImages]:
        """Return the images of all nodes that answer, by node."""
        return [await self._of(node.name) for node in self._nodes.all() if node.state is not NodeState.DOWN]

    async def _of(self, node: str) -> NodeImages:
        try:
            return NodeImages(node, tuple(await self._ask(node, "list")))
        except GpupoolError as error:
            return NodeImages(node, error=error.message)

    async def put(self, actor: Actor, node: str, upload: str, offset: int, data: bytes) -> int:
        """Send a part of an archive to a node, for administrators; return the bytes that the node has now."""
        self._permissions.need_role(actor, Role.ADMIN)
        text = base64.b64encode(data).decode("ascii")
        return int(await self._ask(node, "put", upload=upload, offset=offset, data=text))

    async def import_archive(self, actor: Actor, node: str, upload: str, name: str) -> str:
        """Start the import of an uploaded archive on a node, for administrators; return the name of the job."""
        if name:
            check_image(name)
        return await self._begin(actor, node, f"image {name or upload} imported", "import", upload=upload, name=name)

    async def pull(self, actor: Actor, node: str, name: str) -> str:
        """Start to pull an image on a node, for administrators; return the name of the job."""
        check_image(name)
        return await self._begin(actor, node, f"image {full_image_name(name)} pulled", "pull", name=name)

    async def _begin(self, actor: Actor, node: str, what: str, method: str, **params: Any) -> str:
        self._permissions.need_role(actor, Role.ADMIN)
        job = str(await self._ask(node, method, **params))
        await self._note(actor, node, what)
        return job

    async def job(self, actor: Actor, node: str, job: str) -> dict[str, Any]:
        """Return ``done`` and ``names`` of a job; raises the error of the job."""
        self._permissions.need_role(actor, Role.ADMIN)
        return dict(await self._ask(node, "job", job=job))

    async def remove(self, actor: Actor, node: str, name: str) -> None:
        """Remove an image from a node, for administrators."""
        self._permissions.need_role(actor, Role.ADMIN)
        check_image(name)
        await self._ask(node, "remove", name=name)
        await self._note(actor, node, f"image {name} removed")

    async def _ask(self, node: str, what: str, **params: Any) -> Any:
        return await self._engine.ports.fabric.link(self._nodes.get(node).name).images(what, **params)

    async def _note(self, actor: Actor, node: str, message: str) -> None:
        event = self._engine.change_event(actor.user, message, f"node {node}")
        await self._engine.transact(lambda draft: draft.note(event))

    # Rules of projects

    def check(self, workload: Workload) -> None:
        """Raise ``GpupoolError(FORBIDDEN)`` for an image or a volume that the project's rules do not allow."""
        rules = self._identities.project(workload.project).rules
        own = [workload.program.container, *(role.container for role in workload.roles)]
        for container in own:
            if container is None:
                continue
            if not is_image_allowed(container.image, rules.images):
                raise GpupoolError(
                    ErrorCode.FORBIDDEN,
                    f"The project {workload.project} does not allow the image {full_image_name(container.image)}.",
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
