"""Browser sessions: sign-in by one-time links, tokens and identities, and sign-out."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import structlog

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.people.access import Actor, Role, Scope, User, secret_hash
from gpupool.domain.people.sessions import (
    LINK_LIFE_S,
    MAX_AGENT_LENGTH,
    SESSION_LIFE_S,
    BrowserClient,
    Session,
    SessionOrigin,
)
from gpupool.services.access.permissions import forbidden
from gpupool.services.access.service import AccessService
from gpupool.services.control.engine import Engine
from gpupool.services.log_rate_limit import LogLimit
from gpupool.services.state.identity_cache import IdentityCache

MAX_SESSIONS_PER_USER = 20  # and links; the least recently used one is ended for a new one
MAX_LINKS = 512
SWEEP_INTERVAL_S = 60.0
MAX_FAILURE_EVENTS = 20  # events for failed attempts in a minute
_SIGN_IN_HINT = "Run 'gpupool dashboard' on the pool's machine, or sign in with a token."

log = structlog.get_logger("gpupool.sessions")


@dataclass(frozen=True, slots=True)
class SessionGrant:
    """The rights of a new session: a user, the highest role, and the token that it depends on."""

    user: str
    role: Role
    origin: SessionOrigin
    said: str  # the kind of sign-in, for the event
    token_id: str = ""
    until: float = float("inf")
    scope: Scope = Scope.FULL


@dataclass(frozen=True, slots=True)
class _Link:
    grant: SessionGrant
    uid: int | None  # over loopback, only a browser of this account or root may use it
    expires_at: float


class SessionService:
    """Browser sessions. ``owner_uid`` is the account of the pool; it and root are administrators."""

    def __init__(self, engine: Engine, identities: IdentityCache, access: AccessService, owner_uid: int) -> None:
        self._engine = engine
        self._store = engine.ports.store.sessions
        self._clock = engine.ports.clock
        self._identities = identities
        self._access = access
        self._owners = {0, owner_uid}
        self._sessions: dict[str, Session] = {}  # by the hash of their secret, in order of their last use
        self._links: OrderedDict[str, _Link] = OrderedDict()
        self._used: dict[str, float] = {}
        self._failures: list[float] = []
        self._log_limit = LogLimit(engine.ports.clock.now, lines=100)
        access.on_revoked(self._token_ended)

    async def load(self) -> None:
        """Load the sessions from the store."""
        self._sessions = {session.secret_sha256: session for session in await self._store.load()}

    # Sign-in

    async def create_link(self, actor: Actor, browser_uid: int | None = None) -> tuple[str, float]:
        """Create a one-time link that signs a browser in as the caller; return its code and expiry in epoch seconds.

        ``browser_uid`` is the account whose browser may use it, if not the caller's own (sudo).
        """
        self._drop_links()
        own = [code for code, link in self._links.items() if link.grant.user == actor.user]
        for code in own[: len(own) - MAX_SESSIONS_PER_USER + 1]:
            del self._links[code]
        if len(self._links) >= MAX_LINKS:
            self._links.popitem(last=False)
        now, token_id, until = self._clock.now(), actor.token_id, await self._access.end_of(actor)
        role = actor.role if token_id else Role.ADMIN  # local accounts: the user's role applies
        grant = SessionGrant(actor.user, role, SessionOrigin.LINK, "by a one-time link", token_id, until, actor.scope)
        uid = actor.uid if browser_uid is None else browser_uid
        code = secrets.token_urlsafe(32)
        self._links[secret_hash(code)] = _Link(grant, None if token_id else uid, now + LINK_LIFE_S)
        return code, now + LINK_LIFE_S

    async def follow_link(self, code: str, place: BrowserClient) -> tuple[str, Session]:
        """Use a link once; return the secret and the session. Raises UNAUTHENTICATED.

        Over loopback the kernel reports the account of the browser, so that other accounts cannot use the link.
        """
        link = self._link(code)
        if place.uid is not None and link.uid is not None and place.uid not in {link.uid, 0}:
            raise _refused("This link is for a browser of another account of this machine.")
        del self._links[secret_hash(code)]
        return await self.open(link.grant, place)

    def link_user(self, code: str) -> str:
        """Return the user of a link without using it; raises UNAUTHENTICATED."""
        return self._link(code).grant.user

    def _link(self, code: str) -> _Link:
        link = self._links.get(secret_hash(code))
        if link is None or self._clock.now() >= link.expires_at:
            raise _refused("This link is no longer valid: it works once, within a minute.")
        return link

    async def show_token(self, secret: str, place: BrowserClient) -> tuple[str, Session]:
        """Open a session with a token; return its secret and the session. Raises UNAUTHENTICATED or FORBIDDEN."""
        actor = await self._access.actor_for_token(secret)
        if not actor.scope.includes(Scope.READ):
            raise forbidden(f"This token has the scope {actor.scope}; the dashboard needs {Scope.READ}.")
        token_id, until = actor.token_id, await self._access.end_of(actor)
        grant = SessionGrant(
            actor.user, actor.role, SessionOrigin.TOKEN, f"by token {token_id}", token_id, until, actor.scope
        )
        return await self.open(grant, place)

    async def open(self, grant: SessionGrant, place: BrowserClient) -> tuple[str, Session]:
        """Open a session; the secret goes into its cookie and is not stored. Raises UNAUTHENTICATED, UNKNOWN_USER."""
        self._need_enabled(self._identities.user(grant.user))
        if place.uid is not None and place.uid < 0:
            raise _refused("This machine does not report the account of this browser.")
        now, secret = self._clock.now(), secrets.token_urlsafe(32)
        ends = min(now + SESSION_LIFE_S, grant.until)
        agent = "".join(c for c in place.agent if c.isprintable())[:MAX_AGENT_LENGTH]
        session = Session(
            secret_hash(secret),
            grant.user,
            grant.role,
            grant.origin,
            now,
            ends,
            now,
            grant.token_id,
            agent,
            place.uid,
            grant.scope,
        )
        await self._make_room(grant.user)
        event = self._event(grant.user, Reason.SIGNED_IN, grant.said, grant.user)
        await self._engine.run_exclusive(lambda: self._store.save(session, event))
        self._sessions[session.secret_sha256] = session
        return secret, session

    async def _make_room(self, user: str) -> None:
        own = [session for session in self._sessions.values() if session.user == user]
        await self._forget(own[: max(0, len(own) - MAX_SESSIONS_PER_USER + 1)])

    async def refused(self, place: BrowserClient, why: str) -> None:
        """Record a failed sign-in: at most 20 events and 100 log lines a minute."""
        if self._log_limit.allows("refused"):
            left_out = self._log_limit.take_left_out("refused")
            log.warning("sign-in refused", peer=place.peer[:80], why=why, left_out=left_out)
        now = self._clock.now()
        self._failures = [at for at in self._failures if 0 <= now - at < 60]
        if len(self._failures) < MAX_FAILURE_EVENTS:
            self._failures.append(now)
            event = Event(now, "pool", Reason.SIGN_IN_FAILED, f"{why} ({_origin(place)})", target="dashboard")
            await self._engine.run_exclusive(lambda: self._store.note(event))

    # Requests

    async def actor(self, secret: str, place: BrowserClient, *, in_person: bool = True) -> Actor:
        """Return the user of a browser's cookie with the current role; raises UNAUTHENTICATED.

        ``in_person``: the request comes from a person, not a timer, so it keeps the session alive.
        """
        session = self._sessions.get(secret_hash(secret))
        now = self._clock.now()
        if session is None or session.over(now):
            raise _refused("Your session has ended.")
        if session.peer_uid != place.uid:
            raise _refused("The session belongs to another browser.")
        user = self._identities.users.get(session.user)
        if user is None or user.disabled:
            await self._forget([session])
            raise _refused("Your session has ended.")
        if in_person:
            self._touch(session, now)
        role, via = self._role(session, user), f"session {session.id}"
        return Actor(user.name, role, via, user.uid, session.scope, session.token_id)

    def _role(self, session: Session, user: User) -> Role:
        allowed = Role.ADMIN if user.uid in self._owners else user.role
        return session.role if allowed.includes(session.role) else allowed

    def _touch(self, session: Session, now: float) -> None:
        if now - session.last_used_at < 1.0:
            return
        del self._sessions[session.secret_sha256]  # insert it last: the dict is in order of use
        self._sessions[session.secret_sha256] = replace(session, last_used_at=now)
        self._used[session.secret_sha256] = now

    def sessions(self, actor: Actor) -> Sequence[Session]:
        """Return open sessions, newest first: all for an administrator, the user's own for others."""
        now = self._clock.now()
        seen = (s for s in self._sessions.values() if actor.role is Role.ADMIN or s.user == actor.user)
        return sorted((s for s in seen if not s.over(now)), key=lambda s: -s.created_at)

    # Sign-out

    async def sign_out(self, secret: str) -> None:
        """End the session of a browser, if it exists."""
        session = self._sessions.get(secret_hash(secret))
        if session is not None:
            await self._forget([session], [self._event(session.user, Reason.SIGNED_OUT, "signed out", session.user)])

    async def end(self, actor: Actor, session_id: str) -> None:
        """End a session of the user, or any session as an administrator; raises NOT_FOUND."""
        found = [session for session in self.sessions(actor) if session.id == session_id]
        if not found:
            raise GpupoolError(ErrorCode.NOT_FOUND, f"There is no session '{session_id[:80]}'.", "It may have expired.")
        said = f"session {session_id} ended"
        await self._forget(found, [self._event(actor.user, Reason.SIGNED_OUT, said, found[0].user)])

    async def _token_ended(self, token_id: str) -> None:
        self._links = OrderedDict((c, link) for c, link in self._links.items() if link.grant.token_id != token_id)
        await self._forget_where(lambda session: session.token_id == token_id)

    async def _forget_where(self, condition: Callable[[Session], bool]) -> None:
        await self._forget([session for session in self._sessions.values() if condition(session)])

    async def _forget(self, ended: Iterable[Session], events: Sequence[Event] = ()) -> None:
        hashes = [session.secret_sha256 for session in ended]
        for one in hashes:  # before the write, so that it takes effect at once
            self._sessions.pop(one, None)
            self._used.pop(one, None)
        if not hashes:
            return
        if events:
            await self._engine.run_exclusive(lambda: self._store.drop(hashes, events))
        else:
            await self._store.drop(hashes)

    # Background task

    async def run(self) -> None:
        """Run for ever: store times of use, and delete sessions that are over."""
        while True:
            await self._engine.ports.sleep(SWEEP_INTERVAL_S)
            try:
                await self.sweep()
            except GpupoolError as error:
                log.warning("could not write sessions", code=error.code)

    async def sweep(self) -> None:
        """Store times of use, and delete sessions that are over."""
        now = self._clock.now()
        self._drop_links()
        disabled = {user.name for user in self._identities.users.values() if user.disabled}
        await self._forget_where(lambda s: s.over(now) or s.user in disabled)
        used, self._used = self._used, {}
        if used:
            await self._store.touch(used)

    def _drop_links(self) -> None:
        now = self._clock.now()
        while self._links and next(iter(self._links.values())).expires_at <= now:
            self._links.popitem(last=False)

    def _need_enabled(self, user: User) -> None:
        if user.disabled:
            raise _refused(f"The user {user.name} is disabled.")

    def _event(self, by: str, reason: Reason, said: str, user: str) -> Event:
        return Event(self._clock.now(), by, reason, said, target=f"user {user}")


def _origin(place: BrowserClient) -> str:
    return "over the network" if place.uid is None else f"uid {place.uid}"


def _refused(sentence: str) -> GpupoolError:
    return GpupoolError(ErrorCode.UNAUTHENTICATED, sentence, _SIGN_IN_HINT)
