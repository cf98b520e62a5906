"""Submission, dry runs, and Kubernetes manifests."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api.deps import Closing, Member, Services, TimeoutS, answer
from gpupool.api.routes.work.workloads import unless_over, viewer_of
from gpupool.api.schemas.work.manifests import AppliedList, AppliedView, ApplyBody, RemarkView
from gpupool.api.schemas.work.plans import PlanView
from gpupool.api.schemas.work.workloads import WorkloadDetail, WorkloadView
from gpupool.api.views import plan_view, workload_view
from gpupool.api.views.service_view import service_view
from gpupool.domain.nodes.sharing import traits_of
from gpupool.domain.people.access import DEFAULT_PROJECT
from gpupool.services.workloads.manifests import Applied, ManifestOptions
from gpupool.services.workloads.service import WaitFor
from gpupool.specs.kubernetes.kinds import BY_NAME
from gpupool.specs.kubernetes.settings import PodSettings
from gpupool.specs.request import parse_request_json

router = APIRouter(prefix="/v1", tags=["workloads"])

REQUEST_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/WorkloadRequest"}}},
    }
}


@router.post(
    "/workloads",
    status_code=201,
    response_model=WorkloadDetail | WorkloadView,
    responses={200: {"model": WorkloadDetail | WorkloadView, "description": "This request_id was already processed."}},
    openapi_extra=REQUEST_BODY,
)
async def submit_workload(
    request: Request,
    services: Services,
    caller: Member,
    closing: Closing,
    wait: WaitFor | None = None,
    timeout_s: TimeoutS = 25.0,
) -> Response:
    """Submit a workload. With ``wait``, the answer has the replicas, after the wait or its time limit.

    The header ``Gpupool-Attach`` is the ``attach_path`` of a single replica, if clients have no warning to print: the
    native program ``gpupool`` reads no JSON.
    """
    wanted = parse_request_json(await request.body())
    workload, created = await services.workloads.submit(caller, wanted)
    status = 201 if created else 200
    location = f"/v1/workloads/{workload.id}" if created else None
    if wait is None:
        view = await workload_view.workload_view(services, viewer_of(request, caller), workload)
        return answer(view, status, location)
    waiting = services.workloads.wait(
        caller, workload.id, until=wait, timeout_s=timeout_s, bound=workload.program.client_bound
    )
    workload = await unless_over(waiting, request, closing, otherwise=workload)
    detail = await workload_view.workload_detail(services, viewer_of(request, caller), workload)
    response = answer(detail, status, location)
    path = detail.replicas[0].attach_path if len(detail.replicas) == 1 else ""
    if path.isascii() and path.isprintable() and traits_of(detail.sharing).enforced:
        response.headers["gpupool-attach"] = path
    return response


@router.post("/plan", response_model=PlanView, openapi_extra=REQUEST_BODY)
async def plan_workload(request: Request, services: Services, caller: Member) -> Response:
    """Return where and when a request would start if it were submitted now; errors are those of a submission."""
    wanted = parse_request_json(await request.body())
    return answer(plan_view.plan_view(await services.plans.plan(caller, wanted)))


@router.post("/apply", response_model=AppliedList)
async def apply_manifests(request: Request, services: Services, caller: Member, body: ApplyBody) -> Response:
    """Create the objects of manifests (YAML or JSON, one or more documents): all of a file, or after an error none."""
    applied, remarks = await services.manifests.apply(caller, body.text, body.name, _how(body))
    viewer = viewer_of(request, caller)
    views = [
        AppliedView(
            kind=one.kind,
            resource=_resource(one),
            name=one.name,
            action=one.action.value,
            workload=None
            if one.workload is None
            else await workload_view.workload_view(services, viewer, one.workload),
            ended=one.ended,
            service=None if one.service is None else service_view(services, caller, one.service),
        )
        for one in applied
    ]
    warnings = [RemarkView(code=r.code.value, message=r.message, line=r.line, column=r.column) for r in remarks]
    return answer(AppliedList(objects=views, warnings=warnings))


def _resource(one: Applied) -> str:
    kind = BY_NAME.get(one.kind)
    return kind.resource if kind is not None else one.kind.lower()


def _how(body: ApplyBody) -> ManifestOptions:
    settings = PodSettings(
        project=body.project,
        containers=not body.no_container,
        container=body.container,
        claims=dict(body.claims),
    )
    return ManifestOptions(
        settings=settings,
        default_project=body.default_project or DEFAULT_PROJECT,
        env=dict(body.env),
        workdir=body.workdir,
        umask=body.umask,
        force=body.force,
        dry_run=body.dry_run,
    )
