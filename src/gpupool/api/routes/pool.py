"""The pool: its state, metrics and settings, and the authenticated user."""

from __future__ import annotations

import os

from fastapi import APIRouter, Request
from starlette.responses import Response

from gpupool.api.deps import Administrator, Caller, Services, answer
from gpupool.api.prometheus import CONTENT_TYPE, Exposition
from gpupool.api.schemas.nodes.nodes import HeadAddressList, HealthView, PoolView
from gpupool.api.schemas.people import WhoamiView
from gpupool.api.schemas.settings import (
    BackupChange,
    BackupFileView,
    BackupsView,
    PolicyChange,
    PolicyView,
    WarningAttemptView,
    WarningSettingsChange,
    WarningSettingsView,
    WarningTestBody,
    WarningTestView,
)
from gpupool.api.schemas.top import TopView
from gpupool.api.views import workload_view
from gpupool.api.views.top_view import top_view, written
from gpupool.domain.people.access import Project, Role
from gpupool.domain.people.warning import WarningSettings
from gpupool.scheduling.policy import Policy
from gpupool.services.backups.service import BackupReport

router = APIRouter(prefix="/v1", tags=["pool"])
open_router = APIRouter(prefix="/v1", tags=["pool"])


@open_router.get("/health", response_model=HealthView)
async def health(services: Services) -> Response:
    """Return the health of the control plane. No credentials are needed."""
    info = services.info
    return answer(HealthView.of(info, status="ok", pid=os.getpid()))


@router.get("/pool", response_model=PoolView)
async def pool(services: Services, _caller: Caller) -> Response:
    """Return the pool's resources and their use."""
    return answer(await workload_view.pool_view(services))


@router.get("/heads", response_model=HeadAddressList)
async def heads(services: Services, _caller: Caller) -> Response:
    """Return all heads with their certificates, so that clients can use another one after a failover."""
    return answer(HeadAddressList(heads=await workload_view.head_addresses(services)))


@router.post("/pool/stop-jobs", response_model=PoolView)
async def stop_jobs(services: Services, caller: Administrator) -> Response:
    """Ask live workloads of everybody to stop, for about a second. For administrators.

    Repeat it until nothing is queued or running: with thousands of workloads one call does not ask all of them.
    """
    await services.workloads.stop_everything(caller)
    return answer(await workload_view.pool_view(services))


@router.get("/whoami", response_model=WhoamiView)
async def whoami(services: Services, caller: Caller) -> Response:
    """Return the authenticated user."""
    projects = [p.name for p in await services.access.projects() if _may_use(caller.user, caller.role, p)]
    return answer(WhoamiView.of(caller, projects=sorted(projects)))


def _may_use(user: str, role: Role, project: Project) -> bool:
    return role is Role.ADMIN or not project.members or user in project.members


@router.get("/top", response_model=TopView)
async def top(services: Services, _caller: Caller) -> Response:
    """Nodes, GPUs with their slices, workloads and users, and what they use: all of one moment."""
    view = await top_view(await services.metrics.snapshot())
    return Response(await written(view), media_type="application/json")


metrics_router = APIRouter(tags=["pool"])


@metrics_router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request, _caller: Caller) -> Response:
    """Return metrics in the text format of Prometheus. A viewer's token is sufficient."""
    exposition: Exposition = request.app.state.exposition
    return Response(await exposition.text(), media_type=CONTENT_TYPE)


@router.get("/policy", response_model=PolicyView)
async def get_policy(services: Services, _caller: Caller) -> Response:
    """Return the current policy."""
    return answer(_policy_view(services.policy.policy))


@router.patch("/policy", response_model=PolicyView)
async def change_policy(services: Services, caller: Administrator, body: PolicyChange) -> Response:
    """Change it; fields left out stay. In force from the next decision on. For administrators."""
    return answer(_policy_view(await services.policy.change(caller, body.model_dump(exclude_unset=True))))


def _policy_view(policy: Policy) -> PolicyView:
    return PolicyView(**policy.to_dict())


@router.get("/backups", response_model=BackupsView)
async def get_backups(services: Services, caller: Administrator) -> Response:
    """Return the backup schedule and the backups on the leader. For administrators."""
    return answer(_backups_view(await services.backups.report(caller)))


@router.patch("/backups", response_model=BackupsView)
async def change_backups(services: Services, caller: Administrator, body: BackupChange) -> Response:
    """Change the schedule; fields left out stay. For administrators."""
    await services.backups.change(caller, body.model_dump(exclude_unset=True))
    return answer(_backups_view(await services.backups.report(caller)))


def _backups_view(report: BackupReport) -> BackupsView:
    return BackupsView(
        every_s=report.schedule.every_s,
        keep=report.schedule.keep,
        folder=report.folder,
        last_success_at=report.newest,
        last_error=report.error,
        files=[
            BackupFileView(name=file.name, made_at=file.made_at, size_bytes=file.size, state=file.state)
            for file in report.files
        ],
    )


@router.get("/warnings", name="get_settings", response_model=WarningSettingsView)
async def get_warnings(services: Services, caller: Administrator) -> Response:
    """Where warnings go; no secret is shown. For administrators."""
    return answer(_warnings_view(services.warnings.settings(caller)))


@router.patch("/warnings", name="change_settings", response_model=WarningSettingsView)
async def change_warnings(services: Services, caller: Administrator, body: WarningSettingsChange) -> Response:
    """Change it; fields left out stay. In force at once. For administrators."""
    return answer(
        _warnings_view(await services.warnings.change(caller, body.model_dump(mode="json", exclude_unset=True)))
    )


@router.post("/warnings/test", name="test_settings", response_model=WarningTestView)
async def test_warnings(services: Services, caller: Administrator, body: WarningTestBody) -> Response:
    """Send one message each way now, and say what came of it. For administrators."""
    attempts = await services.warnings.test(caller, body.to)
    return answer(WarningTestView(attempts=[WarningAttemptView.of(attempt) for attempt in attempts]))


def _warnings_view(settings: WarningSettings) -> WarningSettingsView:
    return WarningSettingsView(**settings.shown())
