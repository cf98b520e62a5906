"""Schemas of uploaded and downloaded files."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpupool.api.schemas.base import Body, PageView, View

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="A SHA-256.")]
Size = Annotated[int, Field(ge=0, le=1 << 40, description="Bytes.")]


class BlobsBody(Body):
    """Contents that the caller wants to upload."""

    blobs: Annotated[list[tuple[Digest, Size]], Field(max_length=20_000)]


class HeldView(View):
    """Stored bytes of each requested content, in the same order; -1: nothing."""

    held: list[int]


class PortView(View):
    """A TCP port on which a process of a program listens; ``pid`` and ``program`` identify that process."""

    port: int
    address: str
    pid: int
    program: str


class PortList(PageView):
    """The ports of a replica; those of its first process come first."""

    ports: list[PortView]


class OpenedPortView(View):
    """A link that opens a port in a browser; its ticket in the query is a secret. ``expires_at``: UTC, seconds."""

    url: str
    expires_at: float


class TreeBody(Body):
    """A list of files (itself uploaded as a content) whose contents are all uploaded."""

    tree: Digest


class TreeView(View):
    """A complete folder, in which workloads may start."""

    tree: str
    bytes: int


class DigestsView(View):
    """The SHA-256 of each content, in the order of the request."""

    digests: list[str]


class FoundView(View):
    """An entry in the folder of a workload; ``kind``: file, folder, link or special. ``mtime``: seconds."""

    path: str
    kind: str
    size: int
    mtime: float
    mode: int
    target: str


class FoundList(View):
    """A page of entries; ``next_cursor`` gets the next page, null at the end."""

    files: list[FoundView]
    next_cursor: str | None
