"""Styles and scripts, kept in memory and served under an address that changes with their content."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter
from fastapi.params import Path as PathParameter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.errors import ErrorCode, GpupoolError

router = APIRouter()

STATIC = Path(__file__).parent / "static"
_FOREVER = "public, max-age=31536000, immutable"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file: as it is, and compressed where that is worth it."""

    body: bytes
    packed: bytes | None
    media_type: str


class Assets:
    """All files of a folder that have a known type; ``version`` is a hash of their content."""

    def __init__(self, folder: Path = STATIC) -> None:
        names = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in _TYPES)
        self.files = {path.relative_to(folder).as_posix(): _read(path) for path in names}
        digest = hashlib.sha256()
        for name, asset in self.files.items():
            digest.update(name.encode() + b"\0" + asset.body)
        self.version = digest.hexdigest()[:12]

    def url(self, name: str) -> str:
        """Return the URL of a file; raise KeyError if it does not exist. Relative imports in it also work."""
        self.files[name]
        return f"/static/{self.version}/{name}"

    def answer(self, request: Request, version: str, name: str) -> Response | None:
        """Return the file or None. Browsers cache the current version forever and revalidate other versions."""
        asset = self.files.get(name)
        if asset is None:
            return None
        headers = {"cache-control": _FOREVER if version == self.version else "no-cache", "vary": "accept-encoding"}
        if asset.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(asset.packed, headers=headers | {"content-encoding": "gzip"}, media_type=asset.media_type)
        return Response(asset.body, headers=headers, media_type=asset.media_type)


def _read(path: Path) -> Asset:
    body = path.read_bytes()
    packed = gzip.compress(body, 9, mtime=0) if path.suffix != ".png" and len(body) > 1000 else None
    return Asset(body, packed, _TYPES[path.suffix])


@cache
def assets() -> Assets:
    """Return the assets of the dashboard, read at the first call."""
    return Assets()


@router.get("/static/{version}/{name:path}")
async def static(request: Request, version: str, name: Annotated[str, PathParameter(max_length=200)]) -> Response:
    """Return one file; open to all, because the sign-in page needs it."""
    answer = assets().answer(request, version, name)
    if answer is None:
        raise GpupoolError(ErrorCode.NOT_FOUND, "There is no such file.", "Reload the page.")
    return answer


@router.get("/favicon.ico")
async def favicon(request: Request) -> Response:
    """Return the icon that browsers request automatically."""
    answer = assets().answer(request, "", "icon.svg")
    assert answer is not None  # noqa: S101 - it is part of the package
    return answer
