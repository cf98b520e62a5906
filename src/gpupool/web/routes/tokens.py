"""Tokens for pools on a network: made, shown once, revoked."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import Response

from gpupool.api.deps import NameInPath
from gpupool.api.schemas import TokenBody
from gpupool.domain.access import Role
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.web.asked import Ask, Asked, attempt
from gpupool.web.deps import SentForm
from gpupool.web.listing import Column, Kind, listing
from gpupool.web.pages import back_to
from gpupool.web.views import people as views
from gpupool.web.views import typed as forms
from gpupool.web.views.people import TokenLine
from gpupool.web.views.typed import Typed

router = APIRouter()

TOKENS = (
    Column[TokenLine]("token", "Token", lambda row: row.id, note=lambda row: row.token.note or None),
    Column[TokenLine]("user", "User", lambda row: row.token.user, link=lambda row: f"/users/{row.token.user}"),
    Column[TokenLine]("role", "Role", lambda row: str(row.token.role)),
    Column[TokenLine]("state", "State", lambda row: row.state, Kind.STATE),
    Column[TokenLine]("created", "Made", lambda row: row.token.created_at, Kind.TIME),
    Column[TokenLine]("expires", "Expires", lambda row: row.token.expires_at, Kind.TIME),
    Column[TokenLine]("used", "Last used", lambda row: row.token.last_used_at, Kind.TIME),
)


@router.get("/tokens")
async def tokens(ask: Ask) -> Response:
    """All tokens for an administrator, one's own for others."""
    return await _list(ask, Typed({"user": ask.visitor.user, "role": str(ask.visitor.role), "expires": "30d"}))


async def _list(ask: Asked, typed: Typed) -> Response:
    lines = await views.token_lines(ask.services, ask.visitor)
    users = await ask.services.access.users() if ask.visitor.role is Role.ADMIN else ()
    return ask.show(
        "tokens.html",
        "Tokens",
        typed,
        table=listing(ask.request, TOKENS, lines, name="tokens", default_sort="-created"),
        users=[user.name for user in users if not user.disabled],
        roles=[(role, role) for role in Role if ask.visitor.role.includes(role)],
    )


@router.post("/tokens")
async def create(ask: Ask, form: SentForm) -> Response:
    """Make a token; this answer is the only one that shows its secret."""

    async def change() -> Response:
        life = forms.seconds(form, "expires")
        if life is None:
            wrong = GpupoolError(ErrorCode.INVALID_DURATION, "It is not said for how long.", "Write 7d, for example.")
            raise forms.FieldError("expires", wrong)
        user, role = form.text("user", ask.visitor.user), forms.choice(form, "role", Role)
        forms.accepted(TokenBody, {"user": user, "role": role, "expires_in_s": life, "note": forms.note(form)})
        token, secret = await ask.services.access.create_token(
            ask.visitor, user=user, role=role, expires_in_s=life, note=forms.note(form)
        )
        return ask.show("token_made.html", "A new token", token=token, secret=secret)

    return await attempt(form, change, lambda typed: _list(ask, typed))


@router.post("/tokens/{token_id}/revoke")
async def revoke(ask: Ask, form: SentForm, token_id: NameInPath) -> Response:
    """Make a token useless at once, and end the browser sessions that it began."""
    await ask.services.access.revoke_token(ask.visitor, token_id)
    user = form.text("of")
    return back_to(f"/users/{quote(user, safe='')}" if user else "/tokens", said=f"The token {token_id} is revoked.")
