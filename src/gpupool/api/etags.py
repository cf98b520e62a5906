"""Versions of settings: ``ETag`` of answers, and changes that happen only if nobody else changed the object."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, is_dataclass
from typing import Annotated, Any

from fastapi import Header
from pydantic import BaseModel
from starlette.responses import Response

from gpupool.api.deps import answer
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.control.precondition import writing_only_if

IfMatch = Annotated[
    str | None,
    Header(max_length=500, description="Change it only if its ETag is one of these; otherwise the answer is 412."),
]


def etag_of(stored: object) -> str:
    """Return the ETag of a stored object. Figures that change by themselves, such as allocated GPUs, are no part of it.

    Any change of the settings gives another ETag, and the same settings have the same one on all heads.
    """
    fields: Any = asdict(stored) if is_dataclass(stored) and not isinstance(stored, type) else stored
    text = json.dumps(fields, sort_keys=True, default=str)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'


def tagged(view: BaseModel, stored: object, status: int = 200, location: str | None = None) -> Response:
    """Return the view of a stored object with its ETag."""
    made = answer(view, status, location)
    made.headers["etag"] = etag_of(stored)
    return made


def only_if(wanted: str | None, current: Callable[[], object]) -> AbstractContextManager[None]:
    """Let the writes of the block fail with PRECONDITION_FAILED unless ``current`` has one of the wanted ETags."""
    if wanted is None:
        return nullcontext()
    tags = {tag.strip() for tag in wanted.split(",")}

    def check() -> None:
        try:
            present = etag_of(current())
        except GpupoolError as error:  # it does not exist
            raise _failed() from error
        if "*" not in tags and present not in tags:
            raise _failed()

    return writing_only_if(check)


def _failed() -> GpupoolError:
    return GpupoolError(
        ErrorCode.PRECONDITION_FAILED,
        "The object has changed since it was read, so nothing was changed.",
        "Read it again, and repeat the change with its present ETag.",
    )
