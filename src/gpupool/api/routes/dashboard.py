"""The way into the dashboard, and the browsers that are in."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import Caller, NameInPath, Services, answer
from gpupool.api.schemas.dashboard import LinkBody, LinkView, SessionList, SessionView
from gpupool.domain.signin import Session

router = APIRouter(prefix="/v1", tags=["dashboard"])


@router.post("/dashboard/links", status_code=201, response_model=LinkView)
async def create_link(services: Services, caller: Caller, body: LinkBody) -> Response:
    """Make a link that signs one browser in as the caller: once, within a minute."""
    code, expires_at = await services.sessions.create_link(caller, body.browser_uid)
    path, base = f"/login/link?code={code}", services.info.dashboard
    made = answer(LinkView(url=f"{base}{path}" if base else None, path=path, expires_at=expires_at), 201)
    made.headers["cache-control"] = "no-store"
    return made


@router.get("/sessions", response_model=SessionList)
async def list_sessions(services: Services, caller: Caller) -> Response:
    """Browsers that are signed in: all for an administrator, one's own for others."""
    return answer(SessionList(sessions=[_view(session) for session in services.sessions.sessions(caller)]))


@router.delete("/sessions/{session_id}", status_code=204)
async def end_session(services: Services, caller: Caller, session_id: NameInPath) -> Response:
    """Sign a browser out at once."""
    await services.sessions.end(caller, session_id)
    return Response(status_code=204)


def _view(session: Session) -> SessionView:
    return SessionView(
        id=session.id,
        user=session.user,
        origin=session.origin,
        created_at=session.created_at,
        last_used_at=session.last_used_at,
        expires_at=session.expires_at,
        agent=session.agent,
        local=session.peer_uid is not None,
    )
