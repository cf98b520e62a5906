"""GPU time held, by project and user."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import Caller, Moment, Services, answer
from gpupool.api.mapping import usage_view
from gpupool.api.schemas import UsageView
from gpupool.domain.errors import ErrorCode, GpupoolError

router = APIRouter(prefix="/v1", tags=["usage"])

_DEFAULT_PERIOD_S = 30 * 86400


@router.get("/usage", response_model=UsageView)
async def usage(
    services: Services, caller: Caller, since: Moment | None = None, until: Moment | None = None
) -> Response:
    """GPU seconds held between two times; the last 30 days when none is given."""
    until = time.time() if until is None else until
    since = max(0.0, until - _DEFAULT_PERIOD_S) if since is None else since
    if since > until:
        raise GpupoolError(ErrorCode.INVALID_REQUEST, "since: is after until.", "Give since before until.")
    return answer(usage_view(since, until, await services.history.usage(caller, since, until)))
