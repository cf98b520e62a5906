"""The pool: its state, metrics and settings, and the authenticated user."""

from __future__ import annotations

import os

from fastapi import APIRouter, Request
from starlette.responses import Response

from gpupool.api.deps import Administrator, Caller, Services, answer
from gpupool.api.etags import IfMatch, only_if, tagged
from gpupool.api.prometheus import CONTENT_TYPE, Exposition
from gpupool.api.schemas.nodes.nodes import HeadAddressList, HealthView, PoolView
from gpupool.api.schemas.people import WhoamiView
from gpupool.api.schemas.settings import (
    BackupChange,
    BackupFileView,
    BackupsView,
    PolicyChange,
    PolicyView,
    StorageView,
    StoredFilesView,
    UserStorageView,
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
async def get_health(services: Services) -> Response:
    """Return the health of the control plane. No credentials are needed."""
    info = services.info
    return answer(HealthView.of(info, status="ok", pid=os.getpid()))


@router.get("/pool", response_model=PoolView)
async def get_pool(services: Services, _caller: Caller) -> Response:
    """Return the pool's resources and their use."""
    return answer(await workload_view.pool_view(services))


@router.get("/heads", response_model=HeadAddressList)
async def list_heads(services: Services, _caller: Caller) -> Response:
    """Return all heads with their certificates, so that clients can use another one after a failover."""
    return answer(HeadAddressList(heads=await workload_view.head_addresses(services)))


@router.post("/pool/stop-jobs", response_model=PoolView)
async def stop_all_jobs(services: Services, caller: Administrator) -> Response:
    """Ask live workloads of all users to stop, for about a second. For administrators.

    Repeat it until nothing is queued or running: with thousands of workloads, one call does not reach all of them.
    """
    await services.serving.stop_all(caller)  # first: it would start new replicas
    await services.workloads.stop_everything(caller)
    return answer(await workload_view.pool_view(services))


@router.get("/whoami", response_model=WhoamiView)
async def get_current_user(services: Services, caller: Caller) -> Response:
    """Return the authenticated user."""
    projects = [p.name for p in await services.access.projects() if _may_use(caller.user, caller.role, p)]
    return answer(WhoamiView.of(caller, projects=sorted(projects)))


def _may_use(user: str, role: Role, project: Project) -> bool:
    return role is Role.ADMIN or not project.members or user in project.members


@router.get("/top", response_model=TopView)
async def get_top(services: Services, _caller: Caller) -> Response:
    """Return nodes, GPUs with their slices, workloads and users, and their resource use, all of one moment."""
    view = await top_view(await services.metrics.snapshot())
    return Response(await written(view), media_type="application/json")


metrics_router = APIRouter(tags=["pool"])


@metrics_router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def get_metrics(request: Request, _caller: Caller) -> Response:
    """Return metrics in the text format of Prometheus. A viewer's token is sufficient."""
    exposition: Exposition = request.app.state.exposition
    return Response(await exposition.text(), media_type=CONTENT_TYPE)


@router.get("/policy", response_model=PolicyView)
async def get_policy(services: Services, _caller: Caller) -> Response:
    """Return the current policy."""
    return tagged(_policy_view(services.policy.policy), services.policy.policy)


@router.patch("/policy", response_model=PolicyView)
async def change_policy(
    services: Services, caller: Administrator, body: PolicyChange, if_match: IfMatch = None
) -> Response:
    """Change the policy from the next decision on; omitted fields stay. For administrators."""
    with only_if(if_match, lambda: services.policy.policy):
        policy = await services.policy.change(caller, body.model_dump(exclude_unset=True))
    return tagged(_policy_view(policy), policy)


def _policy_view(policy: Policy) -> PolicyView:
    return PolicyView(**policy.to_dict())


@router.get("/backups", response_model=BackupsView)
async def get_backups(services: Services, caller: Administrator) -> Response:
    """Return the backup schedule and the backups on the leader. For administrators."""
    report = await services.backups.report(caller)
    return tagged(_backups_view(report), report.schedule)


@router.patch("/backups", response_model=BackupsView)
async def change_backups(
    services: Services, caller: Administrator, body: BackupChange, if_match: IfMatch = None
) -> Response:
    """Change the backup schedule; omitted fields stay. For administrators."""
    with only_if(if_match, lambda: services.backups.schedule):
        schedule = await services.backups.change(caller, body.model_dump(exclude_unset=True))
    return tagged(_backups_view(await services.backups.report(caller)), schedule)


@router.get("/storage", response_model=StorageView)
async def get_storage(services: Services, caller: Administrator) -> Response:
    """Return the disk use on the machine of the control plane, at most a minute old. For administrators."""
    found = await services.storage.report(caller)
    storage = found.storage
    return answer(
        StorageView(
            at=found.at,
            files=[
                StoredFilesView(what=one.what, path=one.path, kept=one.kept, bytes=one.bytes, complete=one.complete)
                for one in storage.files
            ],
            users=[UserStorageView(user=row.user, bytes=row.bytes, files=dict(row.files)) for row in found.users],
            free_bytes=storage.free_bytes,
            total_bytes=storage.total_bytes,
        )
    )


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


@router.get("/warnings", response_model=WarningSettingsView)
async def get_warning_settings(services: Services, caller: Administrator) -> Response:
    """Return the settings of warnings, without secrets. For administrators."""
    settings = services.warnings.settings(caller)
    return tagged(_warnings_view(settings), settings)


@router.patch("/warnings", response_model=WarningSettingsView)
async def change_warning_settings(
    services: Services, caller: Administrator, body: WarningSettingsChange, if_match: IfMatch = None
) -> Response:
    """Change the settings of warnings at once; omitted fields stay. For administrators."""
    with only_if(if_match, lambda: services.warnings.settings(caller)):
        settings = await services.warnings.change(caller, body.model_dump(mode="json", exclude_unset=True))
    return tagged(_warnings_view(settings), settings)


@router.post("/warnings/test", response_model=WarningTestView)
async def test_warning_settings(services: Services, caller: Administrator, body: WarningTestBody) -> Response:
    """Send one message over each channel now, and return the results. For administrators."""
    attempts = await services.warnings.test(caller, body.to)
    return answer(WarningTestView(attempts=[WarningAttemptView.of(attempt) for attempt in attempts]))


def _warnings_view(settings: WarningSettings) -> WarningSettingsView:
    return WarningSettingsView(**settings.shown())
