"""Who asks for which page of what: one value for routes that show a form again when it could not be taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.access import Actor
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.services.pool import PoolServices
from gpupool.services.ports import AuditFilter
from gpupool.web.deps import Form, Services, Visitor
from gpupool.web.pages import page
from gpupool.web.views.audit import EventLine, event_line
from gpupool.web.views.typed import Typed

UNPROCESSABLE = 422
HISTORY = 12  # events below the page of what they concern


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, its visitor, and the services."""

    request: Request
    services: PoolServices
    visitor: Actor

    def show(self, template: str, title: str, typed: Typed | None = None, **values: Any) -> Response:
        """A page; ``typed`` is the form on it, with what was wrong with it."""
        if typed is not None:
            values["typed"] = typed
        if typed is None or typed.error is None:
            return page(self.request, self.visitor, template, title=title, **values)
        values["notice"] = typed.notice
        return page(self.request, self.visitor, template, title=title, status=UNPROCESSABLE, **values)

    async def history(self, target: str) -> list[EventLine]:
        """The latest events that concern one thing, as in ``node gpu1``."""
        found = await self.services.history.audit(self.visitor, AuditFilter(target=target, limit=HISTORY))
        return [event_line(event) for event in found]

    def wants_csv(self) -> bool:
        """Whether a table shall be downloaded."""
        return self.request.query_params.get("format") == "csv"


async def asked(request: Request, services: Services, visitor: Visitor) -> Asked:
    """Who asks; raises as ``deps.visitor`` does."""
    return Asked(request, services, visitor)


Ask = Annotated[Asked, Depends(asked)]


async def attempt(
    form: Form, change: Callable[[], Awaitable[Response]], again: Callable[[Typed], Awaitable[Response]]
) -> Response:
    """Do what a form wants, or show it again with what was typed; who may not do it at all is told so."""
    try:
        return await change()
    except GpupoolError as error:
        if error.code in {ErrorCode.FORBIDDEN, ErrorCode.UNAUTHENTICATED}:
            raise
        return await again(Typed.again(form, error))
