"""Request, services and visitor as one value, for routes that show a form again after an error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Actor, Role
from gpupool.services.access.permissions import require_role
from gpupool.services.pool import PoolServices
from gpupool.services.ports.store import AuditFilter
from gpupool.web.deps import Form, Services, Visitor
from gpupool.web.kit.events import EventLine, event_line
from gpupool.web.kit.form_input import FormValues
from gpupool.web.rendering import page

UNPROCESSABLE = 422
MAX_HISTORY_EVENTS = 12  # events shown on the page of their target


@dataclass(frozen=True, slots=True)
class PageContext:
    """A request, its visitor, and the services."""

    request: Request
    services: PoolServices
    visitor: Actor

    def show(self, template: str, title: str, typed: FormValues | None = None, **values: Any) -> Response:
        """Render a page; ``typed`` has the values and the error of its form."""
        if typed is not None:
            values["typed"] = typed
        if typed is None or typed.error is None:
            return page(self.request, self.visitor, template, title=title, **values)
        values["notice"] = typed.notice
        return page(self.request, self.visitor, template, title=title, status=UNPROCESSABLE, **values)

    async def history(self, target: str) -> list[EventLine]:
        """Return the latest events of a target such as ``node gpu1``."""
        found = await self.services.history.audit(self.visitor, AuditFilter(target=target, limit=MAX_HISTORY_EVENTS))
        return [event_line(event) for event in found]

    def wants_csv(self) -> bool:
        """Return True for a CSV download."""
        return self.request.query_params.get("format") == "csv"


async def read_context(request: Request, services: Services, visitor: Visitor) -> PageContext:
    """Return the context of a request; raise as ``deps.visitor`` does."""
    return PageContext(request, services, visitor)


async def administrator_context(request: Request, services: Services, visitor: Visitor) -> PageContext:
    """Return the context; raise FORBIDDEN for all but administrators, before the form is read."""
    require_role(visitor, Role.ADMIN)
    return PageContext(request, services, visitor)


async def manager_context(request: Request, services: Services, visitor: Visitor) -> PageContext:
    """Return the context; raise FORBIDDEN for members and viewers, before the form is read."""
    require_role(visitor, Role.MANAGER)
    return PageContext(request, services, visitor)


async def member_context(request: Request, services: Services, visitor: Visitor) -> PageContext:
    """Return the context; raise FORBIDDEN for viewers, before the form is read."""
    require_role(visitor, Role.MEMBER)
    return PageContext(request, services, visitor)


Context = Annotated[PageContext, Depends(read_context)]
MemberContext = Annotated[PageContext, Depends(member_context)]
AdministratorContext = Annotated[PageContext, Depends(administrator_context)]
ManagerContext = Annotated[PageContext, Depends(manager_context)]


async def handle_form(
    form: Form, change: Callable[[], Awaitable[Response]], again: Callable[[FormValues], Awaitable[Response]]
) -> Response:
    """Apply a form, or show it again with its values and the error. Missing rights are raised."""
    try:
        return await change()
    except GpupoolError as error:
        if error.code in {ErrorCode.FORBIDDEN, ErrorCode.UNAUTHENTICATED}:
            raise
        return await again(FormValues.from_form(form, error))
