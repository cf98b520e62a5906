"""File requests to the other heads of this pool, over pinned connections with this machine's own secret."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gpupool.client.transport import tls_pinning
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.nodes.heads import Head, other_heads
from gpupool.domain.work.program.file_tree import MAX_TREE_BYTES, check_digest, check_space
from gpupool.fabric.ray.head_selection import MEMBER_FILE, read_heads
from gpupool.services.files.serve import NOT_HERE, READ_BYTES, SIZE_BYTES
from gpupool.services.ports.files import Folder, Piece

CONNECT_S = 5.0
PIECE_S = 30.0  # for the next bytes, of which there are at most ``READ_BYTES``
_ANSWER_LIMIT = 64 << 20
_MAX_FOLDERS = 200_000
T = TypeVar("T")


class HeadsOfFolder:
    """Implements ``services.ports.files.OtherHeads`` with the folder of this machine's keys."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> Sequence[str]:
        """Return all known heads but this one; empty if this machine is not known as a head."""
        try:
            return [head.name for head in other_heads(read_heads(self._folder), self._own()[0])]
        except GpupoolError:
            return []

    async def needed(self, head: str) -> Sequence[Folder]:
        """Return the folders that the leader names."""
        answer = await self._ask(head, "needed", {})
        try:
            found = json.loads(await answer.all())["folders"]
            return [Folder(check_space(row["space"]), check_digest(row["tree"])) for row in found[:_MAX_FOLDERS]]
        except (ValueError, TypeError, KeyError) as error:
            raise _unreachable(head, "its response is invalid") from error
        finally:
            answer.close()

    async def contents(self, head: str, space: str, wanted: Sequence[tuple[str, int]]) -> AsyncGenerator[Piece, None]:
        """Yield the pieces that it sends."""
        answer = await self._ask(head, "contents", {"space": space, "wanted": list(wanted)})
        try:
            for sha256, offset in wanted:
                size = int.from_bytes(await answer.exactly(SIZE_BYTES), "big")
                if size == NOT_HERE:
                    yield Piece(sha256, None, offset, b"")
                    continue
                if not offset <= size <= MAX_TREE_BYTES:
                    raise GpupoolError(ErrorCode.INVALID_FILE, f"{head} reports a different file size.", "")
                if offset == size:
                    yield Piece(sha256, size, offset, b"")
                for at in range(offset, size, READ_BYTES):
                    yield Piece(sha256, size, at, await answer.exactly(min(READ_BYTES, size - at)))
        finally:
            answer.close()

    async def _ask(self, head: str, what: str, body: dict[str, Any]) -> _Answer:
        found = next((one for one in read_heads(self._folder) if one.name == head), None)
        if found is None:
            raise _unreachable(head, "it is no longer a head")
        own, secret = self._own()
        answer = _Answer(found)
        try:
            await answer.begin(f"/v1/members/{own}/files/{what}", {**body, "secret": secret})
        except BaseException:
            answer.close()
            raise
        return answer

    def _own(self) -> tuple[str, str]:
        try:
            member = json.loads((self._folder / MEMBER_FILE).read_bytes())
            return str(member["node"]), str(member["secret"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise GpupoolError(ErrorCode.WRONG_STATE, "This machine is not known as a head.", "") from error


class _Answer:
    """One request to one head, sent only to the holder of its certificate. A thread waits for each answer."""

    def __init__(self, head: Head) -> None:
        self._head = head
        address, context = head.url.removeprefix("https://"), tls_pinning.pinned_context(head.certificate)
        self._connection = http.client.HTTPSConnection(address, timeout=CONNECT_S, context=context)
        self._response: http.client.HTTPResponse | None = None
        self._raw: socket.socket | None = None
        self._read = bytearray()

    async def begin(self, path: str, body: dict[str, Any]) -> None:
        """Send the request. Raises POOL_UNREACHABLE, and the head's error."""
        self._response = response = await self._waited(lambda: self._begin(path, json.dumps(body)))
        if response.status != http.client.OK:
            try:
                raise GpupoolError.from_dict(json.loads(await self.all())["error"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise _unreachable(self._head.name, f"it responded with status {response.status}") from error

    def _begin(self, path: str, body: str) -> http.client.HTTPResponse:
        self._connection.connect()
        self._raw = socket.socket(fileno=os.dup(self._connection.sock.fileno()))
        self._connection.sock.settimeout(PIECE_S)
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        return self._connection.getresponse()

    async def all(self) -> bytes:
        """Return the whole answer, up to a limit."""
        return await self._waited(lambda: self._response.read(_ANSWER_LIMIT) if self._response else b"")

    async def exactly(self, size: int) -> bytes:
        """Return the next bytes; raise POOL_UNREACHABLE if there are fewer."""
        if len(self._read) < size:
            await self._waited(lambda: self._fill(size))
        data = bytes(self._read[:size])
        del self._read[:size]
        return data

    def _fill(self, size: int) -> None:
        """Read at least ``size`` bytes, or all that are available: many small contents arrive at once."""
        while len(self._read) < size:
            data = self._response.read1(READ_BYTES) if self._response else b""
            if not data:
                raise EOFError("its response is incomplete")
            self._read += data

    async def _waited(self, work: Callable[[], T]) -> T:
        """Run work on a thread; on a timeout close the connection, which ends the thread's wait."""
        timer = asyncio.get_running_loop().call_later(PIECE_S, self._disconnect)
        try:
            return await asyncio.to_thread(work)
        except (OSError, EOFError, http.client.HTTPException, ValueError) as error:
            raise _unreachable(self._head.name, str(error) or type(error).__name__) from error
        finally:
            timer.cancel()

    def _disconnect(self) -> None:
        with contextlib.suppress(OSError):
            if self._raw is not None:
                self._raw.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; safe to repeat."""
        self._disconnect()
        self._connection.close()
        if self._response is not None:
            self._response.close()
        if self._raw is not None:
            self._raw.close()


def _unreachable(head: str, why: str) -> GpupoolError:
    return GpupoolError(ErrorCode.POOL_UNREACHABLE, f"The head {head} cannot be queried: {why}.", "")
