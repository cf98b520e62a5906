"""The scheduling policy."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import Caller, Services, answer
from gpupool.api.schemas.policy import PolicyChange, PolicyView
from gpupool.scheduling.policy import Policy

router = APIRouter(prefix="/v1/policy", tags=["pool"])


@router.get("", response_model=PolicyView)
async def get_policy(services: Services, caller: Caller) -> Response:
    """The policy in force."""
    del caller
    return answer(_view(services.policy.policy))


@router.patch("", response_model=PolicyView)
async def change_policy(services: Services, caller: Caller, body: PolicyChange) -> Response:
    """Change it; fields left out stay. In force from the next decision on. For administrators."""
    return answer(_view(await services.policy.change(caller, body.model_dump(exclude_unset=True))))


def _view(policy: Policy) -> PolicyView:
    return PolicyView(**policy.to_dict())
