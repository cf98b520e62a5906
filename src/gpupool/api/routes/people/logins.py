"""Login codes, one-time links to the dashboard, and its sessions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gpupool.api.deps import Caller, NameInPath, Services, Word, answer
from gpupool.api.login_limit import FailedAttempts
from gpupool.api.paging import Paged, matches
from gpupool.api.schemas.bodies import TokenBody
from gpupool.api.schemas.people import (
    LinkBody,
    LinkView,
    LoginBody,
    LoginCodeView,
    NewTokenView,
    SessionList,
    SessionView,
)
from gpupool.api.server.peer import peer_name
from gpupool.api.views import access
from gpupool.domain.people.sessions import Session

router = APIRouter(prefix="/v1", tags=["access"])
open_router = APIRouter(prefix="/v1", tags=["access"])
dashboard_router = APIRouter(prefix="/v1", tags=["dashboard"])


@router.post("/login-codes", status_code=201, response_model=LoginCodeView)
async def create_login_code(services: Services, caller: Caller, body: TokenBody) -> Response:
    """Create a code that can be exchanged once for a token, within ten minutes."""
    code, until = await services.login_codes.create(
        caller,
        user=body.user or caller.user,
        role=body.role,
        expires_in_s=body.expires_in_s,
        note=body.note,
        scope=body.scope,
    )
    return _unkept(answer(LoginCodeView(code=code, expires_at=until), 201))


@open_router.post("/logins", status_code=201, response_model=NewTokenView)
async def redeem_login_code(services: Services, request: Request, body: LoginBody) -> Response:
    """Exchange a code for its token. No other credentials are needed."""
    attempts: FailedAttempts = request.app.state.attempts
    with attempts.counted(peer_name(request), body.code):
        token, secret = await services.login_codes.redeem(body.code)
    return _unkept(answer(access.new_token_view(token, secret), 201))


def _unkept(response: Response) -> Response:
    response.headers["cache-control"] = "no-store"
    return response


@dashboard_router.post("/dashboard/links", status_code=201, response_model=LinkView)
async def create_dashboard_link(services: Services, caller: Caller, body: LinkBody) -> Response:
    """Create a link that signs one browser in as the caller: once, within a minute."""
    code, expires_at = await services.sessions.create_link(caller, body.browser_uid)
    path, base = f"/login/link?code={code}", services.info.dashboard
    made = answer(LinkView(url=f"{base}{path}" if base else None, path=path, expires_at=expires_at), 201)
    made.headers["cache-control"] = "no-store"
    return made


@dashboard_router.get("/sessions", response_model=SessionList)
async def list_sessions(services: Services, caller: Caller, page: Paged, user: Word | None = None) -> Response:
    """List the signed-in browsers that match the filter: of all users for an administrator, else the caller's own."""
    rows, following = page.cut([each for each in services.sessions.sessions(caller) if matches(user, each.user)])
    return answer(SessionList(sessions=[_session_view(session) for session in rows], next_cursor=following))


@dashboard_router.delete("/sessions/{session_id}", status_code=204)
async def end_session(services: Services, caller: Caller, session_id: NameInPath) -> Response:
    """Sign a browser out at once."""
    await services.sessions.end(caller, session_id)
    return Response(status_code=204)


def _session_view(session: Session) -> SessionView:
    return SessionView.of(session, local=session.peer_uid is not None)
