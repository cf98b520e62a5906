"""Users: who they are, what they may do, and where warnings reach them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import NameInPath
from gpupool.domain.access import Role, User
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import check_name
from gpupool.web.asked import Ask, Asked, attempt
from gpupool.web.deps import SentForm
from gpupool.web.listing import Column, Kind, listing
from gpupool.web.pages import back_to
from gpupool.web.routes.tokens import TOKENS
from gpupool.web.views import people as views
from gpupool.web.views import typed as forms
from gpupool.web.views.people import UserLine
from gpupool.web.views.typed import Typed

router = APIRouter()

USERS = (
    Column[UserLine]("user", "User", lambda row: row.name, link=lambda row: f"/users/{row.name}"),
    Column[UserLine]("role", "Role", lambda row: str(row.user.role)),
    Column[UserLine]("state", "State", lambda row: row.state, Kind.STATE),
    Column[UserLine]("email", "E-mail", lambda row: row.user.email or None),
    Column[UserLine]("limit", "GPU limit", lambda row: row.user.gpu_limit_permille, Kind.GPUS),
    Column[UserLine]("held", "Holds", lambda row: row.held, Kind.GPUS),
    Column[UserLine]("tokens", "Good tokens", lambda row: row.tokens, Kind.NUMBER),
    Column[UserLine]("uid", "Account (uid)", lambda row: None if row.user.uid is None else str(row.user.uid)),
)
ROLES = (
    (Role.VIEWER, "viewer: reads"),
    (Role.MEMBER, "member: submits, and manages its own"),
    (Role.MANAGER, "manager: manages all work of its projects"),
    (Role.ADMIN, "admin: everything"),
)


@router.get("/users")
async def users(ask: Ask) -> Response:
    """All users for an administrator, oneself for others."""
    return await _list(ask, Typed({"role": "member"}))


async def _list(ask: Asked, typed: Typed) -> Response:
    lines = await views.user_lines(ask.services, ask.visitor)
    table = listing(ask.request, USERS, lines, name="users", default_sort="user")
    return ask.show("users.html", "Users", typed, table=table, roles=ROLES)


@router.post("/users")
async def create_user(ask: Ask, form: SentForm) -> Response:
    """Make a user before it is seen for the first time."""

    async def change() -> Response:
        name = check_name(form.text("name"), "user")
        known = {user.name for user in await ask.services.access.users()}
        if ask.visitor.role is Role.ADMIN and name in known:
            raise GpupoolError(ErrorCode.NAME_TAKEN, f"There is a user '{name}' already.", "Open its page instead.")
        await ask.services.access.put_user(ask.visitor, name, views.user_changes(form, User(name)))
        return back_to(f"/users/{name}", said=f"The user {name} is made.")

    return await attempt(form, change, lambda typed: _list(ask, typed))


@router.get("/users/{name}")
async def user(ask: Ask, name: NameInPath) -> Response:
    """One user."""
    return await _show_user(ask, await _user(ask, name))


async def _user(ask: Asked, name: str) -> User:
    """A user whom the visitor may see; who may not see it is told what is told of one who is not there."""
    shown = views.may_see(ask.visitor, await ask.services.access.users())
    found = next((one for one in shown if one.name == name), None)
    if found is None:
        raise GpupoolError(ErrorCode.UNKNOWN_USER, f"There is no user '{name[:80]}' to see.", "See the list of users.")
    return found


async def _show_user(ask: Asked, known: User, typed: Typed | None = None) -> Response:
    found = await views.user_page(ask.services, ask.visitor, known)
    return ask.show(
        "user.html",
        known.name,
        typed or views.typed_user(known),
        found=found,
        tokens=listing(ask.request, TOKENS, found.tokens, name="tokens", default_sort="-created"),
        roles=ROLES,
        own=known.name == ask.visitor.user and ask.visitor.role is not Role.VIEWER,
        events=await ask.history(f"user {known.name}"),
    )


@router.post("/users/{name}")
async def change_user(ask: Ask, form: SentForm, name: NameInPath) -> Response:
    """Change what the form changes: role, limit, address, account, and whether it may do anything."""
    known = await _user(ask, name)

    async def change() -> Response:
        changes = views.user_changes(form, known)
        if changes:
            await ask.services.access.put_user(ask.visitor, name, changes)
        return back_to(f"/users/{name}", said="Saved." if changes else "Nothing was changed.")

    return await attempt(form, change, lambda typed: _show_user(ask, known, typed))


@router.post("/users/{name}/email")
async def change_email(ask: Ask, form: SentForm, name: NameInPath) -> Response:
    """Change an address alone: one's own too."""
    known = await _user(ask, name)

    async def change() -> Response:
        with forms.about("email"):
            await ask.services.access.put_user(ask.visitor, name, {"email": form.text("email")})
        return back_to(f"/users/{name}", said="Saved.")

    return await attempt(form, change, lambda typed: _show_user(ask, known, typed))
