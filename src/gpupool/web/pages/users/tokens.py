"""The page of tokens for network access: create, show once, revoke."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import NameInPath
from gpupool.api.schemas.bodies import TokenBody
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.people.access import Role, Scope
from gpupool.web.deps import SentForm, reads
from gpupool.web.kit import form_input as forms
from gpupool.web.kit.form_input import FormValues
from gpupool.web.kit.listing import Column, ColumnKind, listing, table_names
from gpupool.web.page_context import Context, PageContext, handle_form
from gpupool.web.pages.users import view as views
from gpupool.web.pages.users.view import TokenLine
from gpupool.web.rendering import back_to

router = APIRouter()

TOKENS = (
    Column[TokenLine]("token", "Token", lambda row: row.id, note=lambda row: row.token.note or None),
    Column[TokenLine]("user", "User", lambda row: row.token.user, link=lambda row: f"/users/{row.token.user}"),
    Column[TokenLine]("role", "Role", lambda row: str(row.token.role)),
    Column[TokenLine]("scope", "Scope", lambda row: str(row.token.scope)),
    Column[TokenLine]("state", "State", lambda row: row.state, ColumnKind.STATE),
    Column[TokenLine]("created", "Created", lambda row: row.token.created_at, ColumnKind.TIME),
    Column[TokenLine]("expires", "Expires", lambda row: row.token.expires_at, ColumnKind.TIME),
    Column[TokenLine]("used", "Last used", lambda row: row.token.last_used_at, ColumnKind.TIME),
)


@router.get("/tokens", dependencies=[reads(*table_names())])
async def tokens(context: Context) -> Response:
    """Show all tokens to an administrator, their own to others."""
    values = {"user": context.visitor.user, "role": str(context.visitor.role), "scope": "full", "expires": "30d"}
    return await _list(context, FormValues(values))


async def _list(context: PageContext, typed: FormValues) -> Response:
    lines = await views.token_lines(context.services, context.visitor)
    users = await context.services.access.users() if context.visitor.role is Role.ADMIN else ()
    return context.show(
        "users/tokens.html",
        "Tokens",
        typed,
        table=listing(context.request, TOKENS, lines, name="tokens", default_sort="-created"),
        users=[user.name for user in users if not user.disabled],
        roles=[(role, role) for role in Role if context.visitor.role.includes(role)],
        scopes=[(scope, scope) for scope in Scope if context.visitor.scope.includes(scope)],
    )


@router.post("/tokens")
async def create(context: Context, form: SentForm) -> Response:
    """Create a token; only this response shows its secret."""

    async def change() -> Response:
        life = forms.seconds(form, "expires")
        if life is None:
            wrong = GpupoolError(ErrorCode.INVALID_DURATION, "A lifetime is required.", "Example: 7d.")
            raise forms.FieldError("expires", wrong)
        user, role = form.text("user", context.visitor.user), forms.choice(form, "role", Role)
        scope = forms.choice(form, "scope", Scope)
        forms.validate(TokenBody, {"user": user, "role": role, "expires_in_s": life, "note": forms.note(form)})
        token, secret = await context.services.access.create_token(
            context.visitor, user=user, role=role, expires_in_s=life, note=forms.note(form), scope=scope
        )
        return context.show("users/token_created.html", "New token created", token=token, secret=secret)

    return await handle_form(form, change, lambda typed: _list(context, typed))


@router.post("/tokens/{token_id}/revoke")
async def revoke(context: Context, form: SentForm, token_id: NameInPath) -> Response:
    """Revoke a token and end the browser sessions that began with it."""
    await context.services.access.revoke_token(context.visitor, token_id)
    user = form.text("of")
    return back_to(f"/users/{quote(user, safe='')}" if user else "/tokens", notice=f"Token {token_id} revoked.")
