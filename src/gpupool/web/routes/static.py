"""Styles and scripts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi.params import Path
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.web.assets import assets

router = APIRouter()


@router.get("/static/{version}/{name:path}")
async def static(request: Request, version: str, name: Annotated[str, Path(max_length=200)]) -> Response:
    """One file; open to everybody, as the page to sign in needs it."""
    answer = assets().answer(request, version, name)
    if answer is None:
        raise GpupoolError(ErrorCode.NOT_FOUND, "There is no such file.", "Reload the page.")
    return answer


@router.get("/favicon.ico")
async def favicon(request: Request) -> Response:
    """What browsers ask for by themselves."""
    answer = assets().answer(request, "", "icon.svg")
    assert answer is not None  # noqa: S101 - it is part of the package
    return answer
