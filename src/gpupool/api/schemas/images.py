"""Container images, as the API takes and shows them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpupool.api.schemas.base import Body, View

Upload = Annotated[str, Field(pattern=r"^[a-z0-9]{8,64}$", description="A name of your own for an archive on its way.")]
ImageName = Annotated[str, Field(max_length=512, description="An image's name.")]


class ImageView(View):
    """An image on a node."""

    node: str
    name: str
    id: str
    size_bytes: int
    created_at: str


class ImageList(View):
    """All images; ``unknown`` says of nodes why theirs are not known."""

    images: list[ImageView]
    unknown: dict[str, str] = Field(default_factory=dict)


class PieceBody(Body):
    """A piece of an archive (base64), and where it begins."""

    upload: Upload
    offset: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    data: Annotated[str, Field(max_length=6 << 20)]


class PieceView(View):
    """How many bytes of it are there now."""

    size: int


class ImageBody(Body):
    """An archive that was brought to the node, or the name of an image to fetch."""

    upload: Upload | None = None
    name: ImageName = ""


class ImageJobView(View):
    """Work that may take long; ``names`` are the images that came of it."""

    job: str
    done: bool = False
    names: list[str] = Field(default_factory=list)
