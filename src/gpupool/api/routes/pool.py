"""The pool as a whole, and who the caller is."""

from __future__ import annotations

import os

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api import assemble
from gpupool.api.deps import Caller, Services, answer
from gpupool.api.schemas import HeadAddressList, HealthView, PoolView, WhoamiView
from gpupool.domain.access import Project, Role

router = APIRouter(prefix="/v1", tags=["pool"])
open_router = APIRouter(prefix="/v1", tags=["pool"])


@open_router.get("/health", response_model=HealthView)
async def health(services: Services) -> Response:
    """Whether the control plane answers. The only address that asks for no credentials."""
    info = services.info
    return answer(HealthView(version=info.version, pool_id=info.pool_id, pid=os.getpid(), term=info.term))


@router.get("/pool", response_model=PoolView)
async def pool(services: Services, _caller: Caller) -> Response:
    """What the pool consists of and how busy it is."""
    return answer(await assemble.pool_view(services))


@router.get("/heads", response_model=HeadAddressList)
async def heads(services: Services, _caller: Caller) -> Response:
    """The machines that may lead the pool, with their certificates: where to go on when the one that leads is lost."""
    return answer(HeadAddressList(heads=await assemble.head_addresses(services)))


@router.post("/pool/stop-jobs", response_model=PoolView)
async def stop_jobs(services: Services, caller: Caller) -> Response:
    """Ask every live workload of everybody to stop. For administrators."""
    await services.workloads.stop_everything(caller)
    return answer(await assemble.pool_view(services))


@router.get("/whoami", response_model=WhoamiView)
async def whoami(services: Services, caller: Caller) -> Response:
    """Who the pool takes the caller for."""
    projects = [p.name for p in await services.access.projects() if _may_use(caller.user, caller.role, p)]
    return answer(
        WhoamiView(user=caller.user, role=caller.role, via=caller.via, uid=caller.uid, projects=sorted(projects))
    )


def _may_use(user: str, role: Role, project: Project) -> bool:
    return role is Role.ADMIN or not project.members or user in project.members
