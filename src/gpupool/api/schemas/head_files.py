"""What heads of one pool ask each other for: folders that were sent."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpupool.api.schemas.base import Body, View
from gpupool.api.schemas.joining import MemberSecret
from gpupool.domain.trees import MOST_BYTES

MOST_ASKED = 1_000  # contents at once
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Space = Annotated[str, Field(pattern=r"^u-[A-Za-z0-9._@+-]{1,64}$")]
_Offset = Annotated[int, Field(ge=0, le=MOST_BYTES)]


class HeadBody(Body):
    """A head that asks: ``secret`` is what it was given when it joined."""

    secret: MemberSecret


class ContentsBody(HeadBody):
    """Contents (digest, where to begin) of one owner's files."""

    space: _Space
    wanted: Annotated[list[tuple[_Digest, _Offset]], Field(max_length=MOST_ASKED)]


class FolderView(View):
    """A folder that live work needs: whose, and the SHA-256 of its list of files."""

    space: str
    tree: str


class NeededView(View):
    """All of them."""

    folders: list[FolderView]
