"""Files of workloads: uploads, downloads of results, and ports of their programs."""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.params import Path
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.websockets import WebSocket

from gpupool.api.deps import Caller, Index, Member, Ref, Services, answer, authenticate, get_closing, until_refused
from gpupool.api.paging import Paged
from gpupool.api.routes.work.attach import accept, check_origin, relay, relay_while_allowed
from gpupool.api.schemas.work.files import (
    BlobsBody,
    DigestsView,
    FoundList,
    FoundView,
    HeldView,
    OpenedPortView,
    PortList,
    PortView,
    TreeBody,
    TreeView,
)
from gpupool.api.server.peer import peer_uid
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.work.program.file_tree import MAX_TREE_BYTES
from gpupool.services.ports.fabric import AttachStream

router = APIRouter(prefix="/v1/files", tags=["files"])
work_router = APIRouter(prefix="/v1/workloads", tags=["files"])

_LENGTH = struct.Struct(">I")
READ_BYTES = 1 << 20

DigestInPath = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="A SHA-256.")]
Size = Annotated[int, Query(ge=0, le=MAX_TREE_BYTES)]
Offset = Annotated[int, Query(ge=0, le=1 << 50)]
Cursor = Annotated[str, Query(max_length=8192, pattern=r"^[A-Za-z0-9_=-]*$", description="Cursor of the last page.")]
Where = Annotated[str, Query(max_length=4096, description="A path in the folder; empty: the whole folder.")]
SocketPath = Annotated[str, Query(max_length=107, pattern="^/", description="An absolute path.")]
PortInPath = Annotated[int, Path(ge=1, le=65535)]
RAW: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}


@router.post("/held", response_model=HeldView)
async def list_held_contents(services: Services, caller: Member, body: BlobsBody) -> Response:
    """Return the bytes that the caller has already uploaded of each content; uploads of others do not count."""
    return answer(HeldView(held=await services.files.have(caller, body.blobs)))


@router.put("/blobs/{sha256}", response_model=HeldView, openapi_extra=RAW)
async def upload_content(
    *, services: Services, caller: Member, request: Request, sha256: DigestInPath, size: Size, offset: Offset = 0
) -> Response:
    """Store a part of a content of ``size`` bytes from ``offset``; return the next offset."""
    return answer(HeldView(held=[await services.files.write(caller, sha256, size, offset, await request.body())]))


@router.post("/pack", response_model=DigestsView, openapi_extra=RAW)
async def upload_contents(services: Services, caller: Member, request: Request) -> Response:
    """Store many small contents at once, each after its length (four bytes, big-endian)."""
    return answer(DigestsView(digests=await services.files.put(caller, _unpack(await request.body()))))


def _unpack(body: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(body):
        if at + _LENGTH.size > len(body):
            raise _cut_off()
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if at + length > len(body):
            raise _cut_off()
        found.append(body[at : at + length])
        at += length
    return found


def _cut_off() -> GpupoolError:
    return GpupoolError(ErrorCode.INVALID_REQUEST, "The request body is incomplete.", "Send each after its length.")


@router.post("/trees", response_model=TreeView)
async def finish_folder(services: Services, caller: Member, body: TreeBody) -> Response:
    """Complete a folder after all uploads: workloads may start in it. Raises NOT_FOUND if a content is missing."""
    return answer(TreeView(tree=body.tree, bytes=await services.files.finish(caller, body.tree)))


@work_router.get("/{ref}/files", response_model=FoundList)
async def list_files(
    *, services: Services, caller: Caller, ref: Ref, index: Index = 0, path: Where = "", cursor: Cursor = ""
) -> Response:
    """Return the entries of a workload's folder on the node of a replica.

    Names that are not UTF-8 are shown with replacement characters; such files cannot be downloaded.
    """
    found = await services.files.list(caller, ref, index, path, _path_of(cursor))
    rows = [FoundView(**asdict(row) | {"path": _said(row.path), "target": _said(row.target)}) for row in found]
    return answer(FoundList(files=rows, next_cursor=_cursor_of(found[-1].path) if found else None))


def _said(path: str) -> str:
    return path.encode("utf-8", "replace").decode()


def _cursor_of(path: str) -> str:
    return base64.urlsafe_b64encode(os.fsencode(path)).decode()


def _path_of(cursor: str) -> str:
    try:
        return os.fsdecode(base64.urlsafe_b64decode(cursor))
    except ValueError as error:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "cursor: is not a cursor of this pool.", "") from error


@work_router.get("/{ref}/files/content", response_class=Response, responses=BYTES)
async def read_file(
    *, services: Services, caller: Caller, ref: Ref, path: Where, index: Index = 0, offset: Offset = 0
) -> Response:
    """Return the bytes of a file from ``offset``."""
    talk, workload, uid = await services.files.talk(caller, ref, index)
    try:
        first = await talk.tree_read(workload, path, uid, offset, READ_BYTES)
    except BaseException:
        await talk.close()
        raise

    async def rest() -> AsyncIterator[bytes]:
        data, at = first, offset
        try:
            while data:
                yield data
                at += len(data)
                data = await talk.tree_read(workload, path, uid, at, READ_BYTES)
        finally:
            await talk.close()

    return StreamingResponse(rest(), media_type="application/octet-stream")


@work_router.get("/{ref}/ports", response_model=PortList)
async def list_ports(services: Services, caller: Caller, ref: Ref, page: Paged, index: Index = 0) -> Response:
    """List the TCP ports on which a replica's processes listen, for callers that may attach to it."""
    found = await services.files.listening_ports(caller, ref, index)
    rows, following = page.cut(found)
    return answer(PortList(ports=[PortView(**asdict(port)) for port in rows], next_cursor=following))


@work_router.post("/{ref}/ports/{port}/open", response_model=OpenedPortView)
async def open_port(
    *, request: Request, services: Services, caller: Member, ref: Ref, port: PortInPath, index: Index = 0
) -> Response:
    """Open a port on which a replica's processes listen in a browser, through the pool's gateway.

    For callers that may attach to the replica. The port has a host name, and so an origin, of its own.
    """
    here = peer_uid(request) is not None
    opened = await services.open_ports.open(caller, ref, index, port, here=here)
    return answer(OpenedPortView(**asdict(opened)))


@dataclass(frozen=True, slots=True)
class PortOptions:
    """Query parameters of a connection to a port."""

    index: Index = 0
    activity: bool = True
    half_close: bool = False


@work_router.websocket("/{ref}/sockets")
async def forward_socket(
    *, websocket: WebSocket, services: Services, ref: Ref, path: SocketPath, options: Annotated[PortOptions, Depends()]
) -> None:
    """Copy bytes to and from a Unix socket on which a replica's processes listen; otherwise like a port."""
    await _forward(websocket, services, ref, path, options)


@work_router.websocket("/{ref}/ports/{port}")
async def forward_port(
    *, websocket: WebSocket, services: Services, ref: Ref, port: PortInPath, options: Annotated[PortOptions, Depends()]
) -> None:
    """Copy bytes to and from a port on which a replica's processes listen; close codes are those of attach.

    With ``activity=false`` the bytes do not count as activity for the idle limit; use it for pages that send requests
    on their own. An empty message of the client ends its sending side. With ``half_close=true``, an empty message
    reports the end of the port's side; without it, that end closes the WebSocket.
    """
    await _forward(websocket, services, ref, port, options)


async def _forward(websocket: WebSocket, services: Services, ref: str, port: int | str, options: PortOptions) -> None:
    async def connect() -> AttachStream:
        check_origin(websocket, "connect")
        return await services.files.connect(
            await authenticate(websocket), ref, options.index, port, activity=options.activity
        )

    if (stream := await accept(websocket, connect)) is not None:
        relaying = relay(websocket, stream, await get_closing(websocket), half_close=options.half_close)
        await relay_while_allowed(websocket, relaying, until_refused(websocket))
