"""The pages of users: roles, limits, accounts and addresses for warnings."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import NameInPath
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import check_name
from gpupool.domain.people.access import Role, User
from gpupool.web.deps import SentForm, reads
from gpupool.web.kit import form_input as forms
from gpupool.web.kit.form_input import FormValues
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.page_context import AdministratorContext, Context, PageContext, handle_form
from gpupool.web.pages.users import view as views
from gpupool.web.pages.users.tokens import TOKENS
from gpupool.web.pages.users.view import UserLine
from gpupool.web.rendering import back_to

router = APIRouter()

USERS = (
    Column[UserLine]("user", "User", lambda row: row.name, link=lambda row: f"/users/{row.name}"),
    Column[UserLine]("role", "Role", lambda row: str(row.user.role)),
    Column[UserLine]("state", "State", lambda row: row.state, ColumnKind.STATE),
    Column[UserLine]("email", "E-mail", lambda row: row.user.email or None),
    Column[UserLine]("limit", "GPU limit", lambda row: row.user.gpu_limit_permille, ColumnKind.GPUS),
    Column[UserLine]("held", "Held", lambda row: row.held, ColumnKind.GPUS),
    Column[UserLine]("tokens", "Active tokens", lambda row: row.tokens, ColumnKind.NUMBER),
    Column[UserLine]("uid", "Account (uid)", lambda row: None if row.user.uid is None else str(row.user.uid)),
)
ROLES = (
    (Role.VIEWER, "viewer: read only"),
    (Role.MEMBER, "member: submits and manages own workloads"),
    (Role.MANAGER, "manager: manages all workloads of own projects"),
    (Role.ADMIN, "admin: everything"),
)


@router.get("/users", dependencies=[reads(*table_names())])
async def users(context: Context) -> Response:
    """Show all users to an administrator, only themselves to others."""
    return await _list(context, FormValues({"role": "member"}))


async def _list(context: PageContext, typed: FormValues) -> Response:
    lines = await views.user_lines(context.services, context.visitor)
    table = listing(context.request, USERS, lines, name="users", default_sort="user")
    return context.show("users/users.html", "Users", typed, table=table, roles=ROLES)


@router.post("/users")
async def create_user(context: AdministratorContext, form: SentForm) -> Response:
    """Create a user before its first use of the pool."""

    async def change() -> Response:
        name = check_name(form.text("name"), "user")
        known = {user.name for user in await context.services.access.users()}
        if context.visitor.role is Role.ADMIN and name in known:
            raise GpupoolError(ErrorCode.NAME_TAKEN, f"User '{name}' already exists.", "Open its page instead.")
        await context.services.access.put_user(context.visitor, name, views.user_changes(form, User(name)))
        return back_to(f"/users/{name}", notice=f"User {name} created.")

    return await handle_form(form, change, lambda typed: _list(context, typed))


@router.get("/users/{name}", dependencies=[reads(*table_names())])
async def user(context: Context, name: NameInPath) -> Response:
    """Show a user."""
    return await _show_user(context, await _user(context, name))


async def _user(context: PageContext, name: str) -> User:
    """Return a user that the visitor may see; raise UNKNOWN_USER for all others."""
    shown = views.may_see(context.visitor, await context.services.access.users())
    found = next((one for one in shown if one.name == name), None)
    if found is None:
        raise GpupoolError(ErrorCode.UNKNOWN_USER, f"There is no user '{name[:80]}'.", "See the list of users.")
    return found


async def _show_user(context: PageContext, known: User, typed: FormValues | None = None) -> Response:
    found = await views.user_page(context.services, context.visitor, known)
    return context.show(
        "users/user.html",
        known.name,
        typed or views.user_form_values(known),
        found=found,
        tokens=listing(context.request, TOKENS, found.tokens, name="tokens", default_sort="-created"),
        roles=ROLES,
        own=known.name == context.visitor.user and context.visitor.role is not Role.VIEWER,
        events=await context.history(f"user {known.name}"),
    )


@router.post("/users/{name}")
async def change_user(context: AdministratorContext, form: SentForm, name: NameInPath) -> Response:
    """Change role, limit, address, account, or whether the user is disabled."""
    known = await _user(context, name)

    async def change() -> Response:
        changes = views.user_changes(form, known)
        if changes:
            await context.services.access.put_user(context.visitor, name, changes)
        return back_to(f"/users/{name}", notice="Saved." if changes else "No changes.")

    return await handle_form(form, change, lambda typed: _show_user(context, known, typed))


@router.post("/users/{name}/email")
async def change_email(context: Context, form: SentForm, name: NameInPath) -> Response:
    """Change only the address; users may change their own."""
    known = await _user(context, name)

    async def change() -> Response:
        with forms.name_field_in_errors("email"):
            await context.services.access.put_user(context.visitor, name, {"email": form.text("email")})
        return back_to(f"/users/{name}", notice="Saved.")

    return await handle_form(form, change, lambda typed: _show_user(context, known, typed))
