"""Files that travel, as the API takes and shows them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpupool.api.schemas.base import Body, View

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="A SHA-256.")]
Size = Annotated[int, Field(ge=0, le=1 << 40, description="Bytes.")]


class BlobsBody(Body):
    """Contents that somebody means to send."""

    blobs: Annotated[list[tuple[Digest, Size]], Field(max_length=20_000)]


class HeldView(View):
    """Stored bytes of each requested content, in the same order; -1: nothing."""

    held: list[int]


class PortView(View):
    """A TCP port on which a process of a program listens: ``pid`` and ``program`` are the number and name of that."""

    port: int
    address: str
    pid: int
    program: str


class PortList(View):
    """The ports of a replica; those of the process that started first are at the beginning."""

    ports: list[PortView]


class TreeBody(Body):
    """A list of files (itself sent as a content) of which everything has been sent."""

    tree: Digest


class TreeView(View):
    """A folder that work may now start in."""

    tree: str
    bytes: int


class DigestsView(View):
    """The SHA-256 of each content, in the order in which they came."""

    digests: list[str]


class FoundView(View):
    """A thing in the folder of some work; ``kind``: file, folder, link or special. ``mtime``: seconds."""

    path: str
    kind: str
    size: int
    mtime: float
    mode: int
    target: str


class FoundList(View):
    """A page of them; ``next_cursor`` is where to go on, null when there are no more."""

    files: list[FoundView]
    next_cursor: str | None
