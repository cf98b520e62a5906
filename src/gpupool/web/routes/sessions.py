"""Browsers that are signed in: one's own, or as an administrator all."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from gpupool.api.deps import NameInPath
from gpupool.domain.access import Role
from gpupool.domain.signin import Session, SessionOrigin
from gpupool.web.deps import SentForm, Services, Visitor
from gpupool.web.listing import Column, Kind, listing
from gpupool.web.pages import back_to, page

router = APIRouter()

# Earlier signs win: most browsers also call themselves by the names of others.
_BROWSERS = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS X", "Mac"),
    ("Linux", "Linux"),
)
_ORIGINS = {SessionOrigin.LINK: "one-time link", SessionOrigin.TOKEN: "token", SessionOrigin.OIDC: "provider"}


@router.get("/sessions")
async def sessions(request: Request, services: Services, visitor: Visitor) -> Response:
    """The table, with a button to end each."""
    rows = services.sessions.sessions(visitor)
    own = visitor.via.removeprefix("session ")
    columns = (
        Column[Session]("user", "User", lambda s: s.user, link=_user_page if visitor.role is Role.ADMIN else None),
        Column[Session]("browser", "Browser", lambda s: browser(s.agent)),
        Column[Session]("place", "Where", lambda s: "this machine" if s.peer_uid is not None else "network"),
        Column[Session]("origin", "Signed in by", lambda s: _ORIGINS[s.origin]),
        Column[Session]("created", "Signed in", lambda s: s.created_at, Kind.TIME),
        Column[Session]("used", "Last used", lambda s: s.last_used_at, Kind.TIME),
        Column[Session]("ends", "Ends at the latest", lambda s: s.expires_at, Kind.TIME),
    )
    table = listing(request, columns, rows, name="sessions", default_sort="-used")
    return page(request, visitor, "sessions.html", title="Sessions", table=table, own=own)


@router.post("/sessions/{session_id}/end")
async def end(services: Services, visitor: Visitor, _form: SentForm, session_id: NameInPath) -> Response:
    """Sign a browser out."""
    await services.sessions.end(visitor, session_id)
    return back_to("/sessions", said="The session is ended.")


def _user_page(session: Session) -> str:
    return f"/users/{session.user}"


def browser(agent: str) -> str:
    """What a browser calls itself, in two words; the whole of it when it is none of the usual."""
    name = next((name for sign, name in _BROWSERS if sign in agent), "")
    system = next((system for sign, system in _SYSTEMS if sign in agent), "")
    return f"{name} on {system}" if name and system else name or agent[:60] or "unknown"
