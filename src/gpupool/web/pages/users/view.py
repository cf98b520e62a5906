"""Values of the pages of users and tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpupool.api.schemas.bodies import UserChange
from gpupool.domain.people.access import Actor, Project, Role, Token, User
from gpupool.domain.people.shares import UserShare
from gpupool.services.pool import PoolServices
from gpupool.web.deps import Form
from gpupool.web.kit import form_input


@dataclass(frozen=True, slots=True)
class UserLine:
    """One user with its allocation (thousandths) and the number of its active tokens."""

    user: User
    held: int
    tokens: int

    @property
    def name(self) -> str:
        """Name."""
        return self.user.name

    @property
    def state(self) -> str:
        """Return ``active`` or ``disabled``."""
        return "disabled" if self.user.disabled else "active"


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One token, without its secret."""

    token: Token
    state: str
    mine: bool

    @property
    def id(self) -> str:
        """Return the id."""
        return self.token.id


@dataclass(frozen=True, slots=True)
class UserPage:
    """One user with tokens, shares in projects, and the projects that it may use."""

    user: User
    tokens: tuple[TokenLine, ...]
    standings: tuple[UserShare, ...]
    projects: tuple[str, ...]


def may_see(actor: Actor, users: Iterable[User]) -> list[User]:
    """Return all users for an administrator, only the actor for others, as in the API."""
    return [user for user in users if actor.role is Role.ADMIN or user.name == actor.user]


async def user_lines(services: PoolServices, actor: Actor) -> list[UserLine]:
    """Return the users that the visitor may see."""
    standings = await services.departments.standings()
    held = Counter[str]()
    for row in standings.users:
        held[row.user] += row.held_permille
    now = services.accounting.now()
    good = Counter(token.user for token in await services.access.tokens(actor) if _state(token, now) == "active")
    return [UserLine(u, held[u.name], good[u.name]) for u in may_see(actor, await services.access.users())]


async def user_page(services: PoolServices, actor: Actor, user: User) -> UserPage:
    """Return a user that the visitor may see."""
    standings = await services.departments.standings()
    tokens = [line for line in await token_lines(services, actor) if line.token.user == user.name]
    return UserPage(
        user=user,
        tokens=tuple(tokens),
        standings=tuple(row for row in standings.users if row.user == user.name),
        projects=_projects_of(user.name, await services.access.projects()),
    )


def _projects_of(name: str, projects: Sequence[Project]) -> tuple[str, ...]:
    return tuple(project.name for project in projects if not project.members or name in project.members)


async def token_lines(services: PoolServices, actor: Actor) -> list[TokenLine]:
    """Return the tokens that the visitor may see, newest first."""
    now = services.accounting.now()
    return [TokenLine(t, _state(t, now), t.user == actor.user) for t in await services.access.tokens(actor)]


def _state(token: Token, now: float) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at <= now else "active"


# Forms


def user_form_values(user: User) -> form_input.FormValues:
    """Return the form values of a user."""
    return form_input.FormValues(
        {
            "role": str(user.role),
            "email": user.email,
            "gpu_limit": form_input.gpus_text(user.gpu_limit_permille),
            "account": "" if user.uid is None else str(user.uid),
            "disabled": user.disabled,
        }
    )


def user_changes(form: Form, user: User) -> dict[str, Any]:
    """Return the fields of a user that a form changes; raise ``GpupoolError``."""
    wanted = {
        "role": form_input.choice(form, "role", Role) or user.role,
        "email": form.text("email"),
        "gpu_limit_permille": form_input.gpus(form, "gpu_limit"),
        "uid": form_input.count(form, "account"),
        "disabled": form.is_checked("disabled"),
    }
    form_input.validate(UserChange, wanted)
    return {name: value for name, value in wanted.items() if value != getattr(user, name)}
