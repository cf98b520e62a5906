"""Sign-in with an identity of a provider, or with a login code that is exchanged for a token once."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from dataclasses import dataclass

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.people.access import Actor, Role, Scope, Token, User, secret_hash
from gpupool.domain.people.identity import Identity, ProviderSettings
from gpupool.domain.people.sessions import BrowserClient, Session, SessionOrigin
from gpupool.services.access.permissions import forbidden
from gpupool.services.access.service import AccessService
from gpupool.services.access.sessions import SessionGrant, SessionService
from gpupool.services.clock import Clock
from gpupool.services.control.engine import Engine
from gpupool.services.state.identity_cache import IdentityCache

log = structlog.get_logger("gpupool.sign_in")

SIGN_IN_LIFETIME_S = 86400.0  # then the provider must confirm again, because it may have removed the person


class IdentityService:
    """Admits identities of a provider; never as ``owner_uid``, the account of the pool, or as root."""

    def __init__(
        self, engine: Engine, identities: IdentityCache, access: AccessService, sessions: SessionService, owner_uid: int
    ) -> None:
        self._clock = engine.ports.clock
        self._store = engine.ports.store.sessions
        self._identities = identities
        self._access = access
        self._sessions = sessions
        self._owners = {0, owner_uid}
        self._following = asyncio.Lock()  # two sign-ins at once must not overwrite each other's memberships

    async def admit(self, identity: Identity, settings: ProviderSettings, place: BrowserClient) -> tuple[str, Session]:
        """Open a session for an identity; return its secret and the session. Raises FORBIDDEN, UNAUTHENTICATED."""
        bound = await self._store.who_is(identity.key)
        user = self._identities.users.get(bound or identity.user)
        if user is not None and user.uid in self._owners:
            raise forbidden(f"{user.name} administers the machine and signs in there, not with {settings.title}.")
        if bound is None:
            user = await self._first_time(identity, settings, user)
        elif user is None:
            raise forbidden(f"The user {bound} does not exist any more.")
        await self._follow_role(identity, settings, user)
        async with self._following:
            await self._follow_projects(identity, settings, user)
        until = self._clock.now() + SIGN_IN_LIFETIME_S
        # The session has the user's role at most.
        grant = SessionGrant(user.name, Role.ADMIN, SessionOrigin.OIDC, f"with {settings.title}", until=until)
        return await self._sessions.open(grant, place)

    async def _first_time(self, identity: Identity, settings: ProviderSettings, user: User | None) -> User:
        if user is None:
            user = await self._make(identity, settings)
        elif not (identity.named or await self._may_match(identity, settings, user)):
            raise forbidden(f"The user {user.name} exists and is not bound to your identity.")
        event = Event(self._clock.now(), "pool", Reason.CHANGED, f"bound: {settings.title}", target=f"user {user.name}")
        await self._store.bind(identity.key, user.name, event)
        return user

    async def _may_match(self, identity: Identity, settings: ProviderSettings, user: User) -> bool:
        """Return True if the name may match: not for administrators, nor for users with another identity."""
        taken = await self._store.is_bound(user.name, identity.provider_key)
        return settings.match_users and user.role is not Role.ADMIN and not taken

    async def _make(self, identity: Identity, settings: ProviderSettings) -> User:
        role = identity.role or settings.default_role
        if not settings.make_users or role is None:
            raise forbidden(f"There is no user {identity.user}, and signing in does not create one.")
        return await self._access.put_user(_actor(settings), identity.user, {"role": role, "email": identity.email})

    async def _follow_role(self, identity: Identity, settings: ProviderSettings, user: User) -> None:
        """Apply the rules at every sign-in, so that a person who left a group loses its role."""
        if identity.role is not None and identity.role is not user.role:
            await self._access.put_user(_actor(settings), user.name, {"role": identity.role})

    async def _follow_projects(self, identity: Identity, settings: ProviderSettings, user: User) -> None:
        """Apply the rules for memberships at every sign-in; projects without a rule, or without members, stay.

        A project without members is open to everybody: it is never changed into such a project.
        """
        for name in sorted(identity.member_of | identity.not_member_of):
            project = self._identities.projects.get(name)
            if project is None:
                log.warning("a rule names a project that does not exist", project=name, provider=settings.title)
                continue
            inside = user.name in project.members
            if name in identity.member_of and not inside:
                members = (*project.members, user.name)
            elif name in identity.not_member_of and inside and len(project.members) > 1:
                members = tuple(member for member in project.members if member != user.name)
            else:
                continue
            await self._access.change_project(_actor(settings), name, {"members": members})


def _actor(settings: ProviderSettings) -> Actor:
    return Actor(settings.title[:60], Role.ADMIN, "provider")


CODE_LIFETIME_S = 600.0
MAX_CODES = 512


@dataclass(frozen=True, slots=True)
class _Waiting:
    token: Token
    secret: str
    actor: Actor
    until: float


class LoginCodes:
    """Login codes in memory only: after a restart of the control plane they and their tokens cannot be used."""

    def __init__(self, access: AccessService, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()

    async def create(
        self,
        actor: Actor,
        *,
        user: str,
        role: Role | None,
        expires_in_s: float,
        note: str = "",
        scope: Scope | None = None,
    ) -> tuple[str, float]:
        """Return a code for a new token, and its expiry. Raises the errors of ``AccessService.create_token``."""
        await self._drop_old()
        token, secret = await self._access.create_token(
            actor, user=user, role=role, expires_in_s=expires_in_s, note=note or "by a login code", scope=scope
        )
        code, until = secrets.token_urlsafe(18), self._clock.now() + CODE_LIFETIME_S
        self._waiting[secret_hash(code)] = _Waiting(token, secret, actor, until)
        return code, until

    async def redeem(self, code: str) -> tuple[Token, str]:
        """Exchange a code for its token and secret, once; raises UNAUTHENTICATED."""
        found = self._waiting.pop(secret_hash(code), None)
        revoked = found is not None and not await self._access.token_expiry(found.token.id)
        if found is None or revoked or self._clock.now() >= found.until:
            raise GpupoolError(
                ErrorCode.UNAUTHENTICATED,
                "This code is no longer valid: it works once, within ten minutes.",
                "Create another on the pool's machine with 'gpupool login-code'.",
            )
        return found.token, found.secret

    async def _drop_old(self) -> None:
        """Revoke the tokens of codes that were not used in time."""
        now = self._clock.now()
        for digest, waiting in list(self._waiting.items()):
            if now >= waiting.until or len(self._waiting) >= MAX_CODES:
                del self._waiting[digest]
                await self._access.revoke_token(waiting.actor, waiting.token.id)
