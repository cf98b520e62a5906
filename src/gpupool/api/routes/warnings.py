"""Warnings to users before their GPUs are taken: where they go."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import Caller, Services, answer
from gpupool.api.schemas.warnings import (
    WarningAttemptView,
    WarningSettingsChange,
    WarningSettingsView,
    WarningTestBody,
    WarningTestView,
)
from gpupool.domain.warning import WarningSettings

router = APIRouter(prefix="/v1/warnings", tags=["pool"])


@router.get("", response_model=WarningSettingsView)
async def get_settings(services: Services, caller: Caller) -> Response:
    """Where warnings go; no secret is shown. For administrators."""
    return answer(_view(services.warnings.settings(caller)))


@router.patch("", response_model=WarningSettingsView)
async def change_settings(services: Services, caller: Caller, body: WarningSettingsChange) -> Response:
    """Change it; fields left out stay. In force at once. For administrators."""
    return answer(_view(await services.warnings.change(caller, body.model_dump(mode="json", exclude_unset=True))))


@router.post("/test", response_model=WarningTestView)
async def test_settings(services: Services, caller: Caller, body: WarningTestBody) -> Response:
    """Send one message each way now, and say what came of it. For administrators."""
    attempts = await services.warnings.test(caller, body.to)
    return answer(WarningTestView(attempts=[WarningAttemptView(**asdict(attempt)) for attempt in attempts]))


def _view(settings: WarningSettings) -> WarningSettingsView:
    return WarningSettingsView(**settings.shown())
