"""A conversation with an agent about files: one question at a time, beside the connection that everything else uses."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.jobfiles import FilesSpec
from gpupool.services.files.ports import Found, Making

ANSWER_WAIT_S = 60.0


class LocalFiles:
    """``services.files.ports.FilesLink`` over a stream to the agent's socket."""

    def __init__(
        self,
        node: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        stack: contextlib.AsyncExitStack,
    ) -> None:
        self._node = node
        self._reader = reader
        self._writer = writer
        self._stack = stack

    async def _ask(self, method: str, **params: Any) -> Any:
        try:
            request = {"id": 1, "method": method, "params": params}
            self._writer.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")
            await self._writer.drain()
            line = await asyncio.wait_for(self._reader.readline(), ANSWER_WAIT_S)
            answer = json.loads(line)
        except (OSError, TimeoutError, ValueError) as error:
            raise GpupoolError(
                ErrorCode.NODE_UNREACHABLE, f"Node {self._node} hung up over files.", "See the node's log."
            ) from error
        if "error" in answer:
            raise GpupoolError.from_dict(answer["error"])
        return answer.get("result")

    async def blob_missing(self, space: str, blobs: Sequence[tuple[str, int]]) -> list[int]:
        """How many bytes of each blob the node has."""
        return [int(size) for size in await self._ask("blob_missing", space=space, blobs=list(blobs))]

    async def blob_put(self, space: str, pieces: Sequence[tuple[str, int, int, bytes]]) -> list[int]:
        """Give it pieces (digest, size, offset, bytes)."""
        rows = [[sha256, size, offset, base64.b64encode(data).decode()] for sha256, size, offset, data in pieces]
        return [int(size) for size in await self._ask("blob_put", space=space, pieces=rows)]

    async def tree_make(self, files: FilesSpec, uid: int | None, env: dict[str, str]) -> Making:
        """Have a workload's folder made."""
        return Making(await self._ask("tree_make", files=asdict(files), uid=uid, env=env))

    async def tree_list(self, workload: str, path: str, uid: int | None, after: str) -> list[Found]:
        """What is in a workload's folder below ``path``."""
        rows = await self._ask("tree_list", workload=workload, path=path, uid=uid, after=after)
        return [Found(*row) for row in rows]

    async def tree_read(self, workload: str, path: str, uid: int | None, offset: int, limit: int) -> bytes:
        """Bytes of a file there."""
        asked = {"workload": workload, "path": path, "uid": uid, "offset": offset, "limit": limit}
        return base64.b64decode(await self._ask("tree_read", **asked))

    async def close(self) -> None:
        """Hang up."""
        await self._stack.aclose()
