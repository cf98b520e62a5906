"""Letting in whom a provider vouches for: as the user they were bound to first, or by the rules."""

from __future__ import annotations

from gpupool.domain.access import Actor, Role, User
from gpupool.domain.events import Event, Reason
from gpupool.domain.identity import Identity, ProviderSettings
from gpupool.domain.signin import Place, Session, SessionOrigin
from gpupool.services.access import AccessService
from gpupool.services.engine import Engine
from gpupool.services.permissions import forbidden
from gpupool.services.register import Register
from gpupool.services.sessions import Grant, SessionService

SIGN_IN_AGAIN_S = 86400.0  # then the provider is asked anew: it may have parted with somebody


class IdentityService:
    """``owner_uid`` is the account that the pool runs as: a provider never vouches for it, or for root."""

    def __init__(
        self, engine: Engine, register: Register, access: AccessService, sessions: SessionService, owner_uid: int
    ) -> None:
        self._clock = engine.ports.clock
        self._store = engine.ports.store.sessions
        self._register = register
        self._access = access
        self._sessions = sessions
        self._owners = {0, owner_uid}

    async def admit(self, identity: Identity, settings: ProviderSettings, place: Place) -> tuple[str, Session]:
        """The secret and the session of somebody; raises FORBIDDEN for whom the rules refuse, UNAUTHENTICATED."""
        bound = await self._store.who_is(identity.key)
        user = self._register.users.get(bound or identity.user)
        if user is not None and user.uid in self._owners:
            raise forbidden(f"{user.name} administers the machine and signs in there, not with {settings.title}.")
        if bound is None:
            user = await self._first_time(identity, settings, user)
        elif user is None:
            raise forbidden(f"The user {bound} is no more.")
        await self._follow_role(identity, settings, user)
        until = self._clock.now() + SIGN_IN_AGAIN_S
        # The user's role bounds what it may do.
        grant = Grant(user.name, Role.ADMIN, SessionOrigin.OIDC, f"with {settings.title}", until=until)
        return await self._sessions.open(grant, place)

    async def _first_time(self, identity: Identity, settings: ProviderSettings, user: User | None) -> User:
        if user is None:
            user = await self._make(identity, settings)
        elif not (identity.named or await self._may_match(identity, settings, user)):
            raise forbidden(f"There is a user {user.name} here who has not been bound to you.")
        event = Event(self._clock.now(), "pool", Reason.CHANGED, f"bound: {settings.title}", target=f"user {user.name}")
        await self._store.bind(identity.key, user.name, event)
        return user

    async def _may_match(self, identity: Identity, settings: ProviderSettings, user: User) -> bool:
        """A name alone makes nobody an administrator, or somebody whom the provider has named before."""
        taken = await self._store.is_bound(user.name, identity.provider_key)
        return settings.match_users and user.role is not Role.ADMIN and not taken

    async def _make(self, identity: Identity, settings: ProviderSettings) -> User:
        role = identity.role or settings.default_role
        if not settings.make_users or role is None:
            raise forbidden(f"There is no user {identity.user} here, and none is made by signing in.")
        return await self._access.put_user(_actor(settings), identity.user, {"role": role, "email": identity.email})

    async def _follow_role(self, identity: Identity, settings: ProviderSettings, user: User) -> None:
        """Rules decide at every sign-in: whoever left a group has lost what it gave, with tokens and all."""
        if identity.role is not None and identity.role is not user.role:
            await self._access.put_user(_actor(settings), user.name, {"role": identity.role})


def _actor(settings: ProviderSettings) -> Actor:
    return Actor(settings.title[:60], Role.ADMIN, "provider")
