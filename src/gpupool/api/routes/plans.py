"""Plans: what a submission would come to, with nothing stored."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api import foretelling
from gpupool.api.deps import Caller, Services, answer
from gpupool.api.routes.workloads import REQUEST_BODY
from gpupool.api.schemas import PlanView
from gpupool.specs.request import parse_request_json

router = APIRouter(prefix="/v1/plan", tags=["workloads"])


@router.post("", response_model=PlanView, openapi_extra=REQUEST_BODY)
async def plan(request: Request, services: Services, caller: Caller) -> Response:
    """Where and when a request would start if it were submitted now; refused as the submission would be."""
    wanted = parse_request_json(await request.body())
    return answer(foretelling.plan_view(await services.plans.plan(caller, wanted)))
