"""Services: servers with replicas and a stable address."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api.deps import Caller, Member, Search, ServiceRef, Services, Word, answer
from gpupool.api.paging import Paged, contains, matches
from gpupool.api.routes.work.submission import REQUEST_BODY
from gpupool.api.schemas.work.services import ScaleBody, ServiceList, ServiceTokenView, ServiceView, UndoBody
from gpupool.api.views.service_view import service_view
from gpupool.domain.work.service import ServiceState
from gpupool.specs.request import parse_request_json

router = APIRouter(prefix="/v1/services", tags=["services"])


@router.get("", response_model=ServiceList)
async def list_services(
    *,
    services: Services,
    caller: Caller,
    page: Paged,
    search: Search | None = None,
    project: Word | None = None,
    state: ServiceState | None = None,
) -> Response:
    """List the services of the caller's projects that match all filters."""
    found = [
        row for row in services.serving.all(caller) if contains(search, row.name) and matches(project, row.project)
    ]
    views = [view for row in found if matches(state, (view := service_view(services, caller, row)).state)]
    rows, following = page.cut(views)
    return answer(ServiceList(services=list(rows), next_cursor=following))


@router.post("", status_code=201, response_model=ServiceView, openapi_extra=REQUEST_BODY)
async def create_service(request: Request, services: Services, caller: Member) -> Response:
    """Create a service from a request of the kind service, and start its first replicas."""
    made = await services.serving.create(caller, parse_request_json(await request.body()))
    return answer(service_view(services, caller, made), 201, f"/v1/services/{made.id}")


@router.get("/{service}", response_model=ServiceView)
async def get_service(services: Services, caller: Caller, service: ServiceRef) -> Response:
    """Return a service by name, by id, or, if several projects have the name, as PROJECT:NAME."""
    return answer(service_view(services, caller, services.serving.get(caller, service)))


@router.post("/{service}/scale", response_model=ServiceView)
async def scale_service(services: Services, caller: Member, service: ServiceRef, body: ScaleBody) -> Response:
    """Set the number of replicas; a stopped service starts again."""
    row = await services.serving.scale(caller, service, body.min, body.max)
    return answer(service_view(services, caller, row))


@router.post("/{service}/update", response_model=ServiceView, openapi_extra=REQUEST_BODY)
async def update_service(request: Request, services: Services, caller: Member, service: ServiceRef) -> Response:
    """Replace the definition; another program is a new revision, to which replicas change one by one."""
    row = await services.serving.update(caller, service, parse_request_json(await request.body()))
    return answer(service_view(services, caller, row))


@router.post("/{service}/undo", response_model=ServiceView)
async def undo_service_update(services: Services, caller: Member, service: ServiceRef, body: UndoBody) -> Response:
    """Change back to an earlier revision; an update in progress ends."""
    return answer(service_view(services, caller, await services.serving.undo(caller, service, body.revision)))


@router.post("/{service}/stop", response_model=ServiceView)
async def stop_service(services: Services, caller: Member, service: ServiceRef) -> Response:
    """Stop all replicas; the definition stays."""
    return answer(service_view(services, caller, await services.serving.stop(caller, service)))


@router.post("/{service}/tokens", status_code=201, response_model=ServiceTokenView)
async def create_service_token(services: Services, caller: Member, service: ServiceRef) -> Response:
    """Create a token with which requests may use the service."""
    row, secret = await services.serving.add_token(caller, service)
    return answer(ServiceTokenView(secret=secret, service=service_view(services, caller, row)), 201)


@router.delete("/{service}/tokens", response_model=ServiceView)
async def delete_service_tokens(services: Services, caller: Member, service: ServiceRef) -> Response:
    """Delete all tokens of the service."""
    return answer(service_view(services, caller, await services.serving.delete_tokens(caller, service)))


@router.delete("/{service}", status_code=204)
async def delete_service(services: Services, caller: Member, service: ServiceRef) -> Response:
    """Delete a stopped service."""
    await services.serving.delete(caller, service)
    return Response(status_code=204)
