"""Manifests: Kubernetes' objects as work of the pool."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api import assemble
from gpupool.api.deps import Caller, Services, answer
from gpupool.api.routes.workloads import viewer_of
from gpupool.api.schemas.manifests import AppliedList, AppliedView, ApplyBody, RemarkView
from gpupool.domain.access import DEFAULT_PROJECT
from gpupool.services.manifests import Applied, HowToApply
from gpupool.specs.kubernetes.settings import Settings
from gpupool.specs.kubernetes.words import BY_NAME

router = APIRouter(prefix="/v1/apply", tags=["workloads"])


@router.post("", response_model=AppliedList)
async def apply(request: Request, services: Services, caller: Caller, body: ApplyBody) -> Response:
    """Make what manifests (YAML or JSON, one or more documents) describe; all of a file, or with an error nothing."""
    applied, remarks = await services.manifests.apply(caller, body.text, body.name, _how(body))
    viewer = viewer_of(request, caller)
    views = [
        AppliedView(
            kind=one.kind,
            resource=_resource(one),
            name=one.name,
            action=one.action.value,
            workload=None if one.workload is None else await assemble.workload_view(services, viewer, one.workload),
            ended=one.ended,
        )
        for one in applied
    ]
    warnings = [RemarkView(code=r.code.value, message=r.message, line=r.line, column=r.column) for r in remarks]
    return answer(AppliedList(objects=views, warnings=warnings))


def _resource(one: Applied) -> str:
    kind = BY_NAME.get(one.kind)
    return kind.resource if kind is not None else one.kind.lower()


def _how(body: ApplyBody) -> HowToApply:
    settings = Settings(
        project=body.project,
        containers=not body.no_container,
        container=body.container,
        claims=dict(body.claims),
    )
    return HowToApply(
        settings=settings,
        default_project=body.default_project or DEFAULT_PROJECT,
        env=dict(body.env),
        workdir=body.workdir,
        umask=body.umask,
        force=body.force,
        dry_run=body.dry_run,
    )
