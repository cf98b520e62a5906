"""What the agent's socket answers about files; each takes JSON values and gives JSON values."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from gpupool.blobs.keep import BlobFolder
from gpupool.node.files import reading
from gpupool.node.files.workspaces import Order, Workspaces

MOST_AT_ONCE = 20_000
NAMES = frozenset({"blob_missing", "blob_put", "tree_make", "tree_list", "tree_read"})

Params = dict[str, Any]


class FileMethods:
    """The methods ``blob_*`` and ``tree_*`` of ``services.files.ports.FilesLink``."""

    workspaces: Workspaces
    blobs: BlobFolder

    def __init__(self, workspaces: Workspaces) -> None:
        self.workspaces = workspaces
        self.blobs = workspaces.blobs

    async def blob_missing(self, params: Params) -> Any:
        """``space``, ``blobs`` ([digest, size], ...) -> bytes held of each; -1: nothing."""
        rows = [(str(sha256), int(size)) for sha256, size in params["blobs"][:MOST_AT_ONCE]]
        space = str(params["space"])
        return await asyncio.to_thread(lambda: [self.blobs.have(space, sha256, size) for sha256, size in rows])

    async def blob_put(self, params: Params) -> Any:
        """``space``, ``pieces`` ([digest, size, offset, base64], ...) -> bytes held of each."""
        return await asyncio.to_thread(self._put, str(params["space"]), params["pieces"])

    def _put(self, space: str, pieces: list[list[Any]]) -> list[int]:
        return [
            self.blobs.write(space, str(sha256), int(size), int(offset), base64.b64decode(data))
            for sha256, size, offset, data in pieces
        ]

    async def tree_make(self, params: Params) -> Any:
        """``files``, ``uid``, ``env`` -> making or made."""
        return await self.workspaces.make(Order.from_dict(params))

    async def tree_list(self, params: Params) -> Any:
        """``workload``, ``path``, ``after`` -> rows of ``reading.listing``."""
        folder, uid = self._place(params)
        return await asyncio.to_thread(
            reading.listing, folder, str(params.get("path", "")), uid, str(params.get("after", ""))
        )

    async def tree_read(self, params: Params) -> Any:
        """``workload``, ``path``, ``offset``, ``limit`` -> base64."""
        folder, uid = self._place(params)
        data = await asyncio.to_thread(
            reading.read, folder, str(params["path"]), uid, int(params["offset"]), int(params["limit"])
        )
        return base64.b64encode(data).decode()

    def _place(self, params: Params) -> tuple[Any, int | None]:
        """As whom it was made is what counts, whatever the question says."""
        workload = params["workload"]
        return self.workspaces.folder(workload), self.workspaces.owner(workload)
