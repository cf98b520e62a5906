"""Browsers that sign in: one-time links, sessions and what ends them."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import structlog

from gpupool.domain.access import Actor, Role, User
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.signin import AGENT_LIMIT, LINK_LIFE_S, SESSION_LIFE_S, Place, Session, SessionOrigin
from gpupool.services.access import AccessService
from gpupool.services.engine import Engine
from gpupool.services.register import Register

MOST_OF_ONE = 20  # sessions and links of one user; the one used longest ago makes way
MOST_LINKS = 512
SWEEP_EVERY_S = 60.0
FAILURES_TOLD = 20  # failed attempts written down in a minute; the log has all
_AGAIN = "Run 'gpupool dashboard' on the pool's machine, or sign in with a token."

log = structlog.get_logger("gpupool.sessions")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a browser may be let in as: a user, the most it may do, and the token that must stay good for it."""

    user: str
    role: Role
    origin: SessionOrigin
    said: str  # how, for the record
    token_id: str = ""
    until: float = float("inf")


@dataclass(frozen=True, slots=True)
class _Link:
    grant: Grant
    uid: int | None  # over loopback only this account's browser may follow it (and root's)
    expires_at: float


class SessionService:
    """Who may look with a browser. ``owner_uid`` is the account that the pool runs as: it and root administer."""

    def __init__(self, engine: Engine, register: Register, access: AccessService, owner_uid: int) -> None:
        self._engine = engine
        self._store = engine.ports.store.sessions
        self._clock = engine.ports.clock
        self._register = register
        self._access = access
        self._owners = {0, owner_uid}
        self._sessions: dict[str, Session] = {}  # by the hash of their secret, in order of their last use
        self._links: OrderedDict[str, _Link] = OrderedDict()
        self._used: dict[str, float] = {}
        self._failures: list[float] = []
        access.on_revoked = self._token_ended

    async def load(self) -> None:
        """Read what the store has."""
        self._sessions = {session.secret_sha256: session for session in await self._store.load()}

    # Ways in

    async def create_link(self, actor: Actor, browser_uid: int | None = None) -> tuple[str, float]:
        """The code of a link that signs one browser in as the caller, once, and when it ends (epoch seconds).

        ``browser_uid``: the account whose browser may follow it, when that is not the caller's own (sudo).
        """
        self._drop_links()
        own = [code for code, link in self._links.items() if link.grant.user == actor.user]
        for code in own[: len(own) - MOST_OF_ONE + 1]:
            del self._links[code]
        if len(self._links) >= MOST_LINKS:
            self._links.popitem(last=False)
        now, token_id = self._clock.now(), actor.via.removeprefix("token ") if actor.via.startswith("token ") else ""
        until = await self._access.token_expiry(token_id) if token_id else float("inf")
        role = actor.role if token_id else Role.ADMIN  # the kernel vouches for accounts: their user's role bounds them
        grant = Grant(actor.user, role, SessionOrigin.LINK, "by a one-time link", token_id, until)
        uid = actor.uid if browser_uid is None else browser_uid
        code = secrets.token_urlsafe(32)
        self._links[_digest(code)] = _Link(grant, None if token_id else uid, now + LINK_LIFE_S)
        return code, now + LINK_LIFE_S

    async def follow_link(self, code: str, place: Place) -> tuple[str, Session]:
        """The secret and the session that a link is good for; it is good for nothing after that.

        Raises UNAUTHENTICATED. Over loopback the kernel says whose browser it is: a link seen by another account is
        of no use to it.
        """
        link = self._link(code)
        if place.uid is not None and link.uid is not None and place.uid not in {link.uid, 0}:
            raise _refused("This link is for a browser of another account of this machine.")
        del self._links[_digest(code)]
        return await self.open(link.grant, place)

    def link_user(self, code: str) -> str:
        """Whom a link would sign in; raises UNAUTHENTICATED. The link stays good."""
        return self._link(code).grant.user

    def _link(self, code: str) -> _Link:
        link = self._links.get(_digest(code))
        if link is None or self._clock.now() >= link.expires_at:
            raise _refused("This link is no longer good: it works once, within a minute.")
        return link

    async def show_token(self, secret: str, place: Place) -> tuple[str, Session]:
        """The secret and the session of a token; raises UNAUTHENTICATED or FORBIDDEN."""
        actor = await self._access.actor_for_token(secret)
        token_id = actor.via.removeprefix("token ")
        until = await self._access.token_expiry(token_id)
        grant = Grant(actor.user, actor.role, SessionOrigin.TOKEN, f"by token {token_id}", token_id, until)
        return await self.open(grant, place)

    async def open(self, grant: Grant, place: Place) -> tuple[str, Session]:
        """Let a browser in; the secret is its cookie's and kept nowhere. Raises UNAUTHENTICATED, UNKNOWN_USER."""
        self._need_enabled(self._register.user(grant.user))
        if place.uid is not None and place.uid < 0:
            raise _refused("This machine does not say whose browser this is.")
        now, secret = self._clock.now(), secrets.token_urlsafe(32)
        ends = min(now + SESSION_LIFE_S, grant.until)
        agent = "".join(c for c in place.agent if c.isprintable())[:AGENT_LIMIT]
        session = Session(
            _digest(secret), grant.user, grant.role, grant.origin, now, ends, now, grant.token_id, agent, place.uid
        )
        await self._make_room(grant.user)
        event = self._event(grant.user, Reason.SIGNED_IN, grant.said, grant.user)
        await self._engine.alone(lambda: self._store.save(session, event))
        self._sessions[session.secret_sha256] = session
        return secret, session

    async def _make_room(self, user: str) -> None:
        own = [session for session in self._sessions.values() if session.user == user]
        await self._forget(own[: max(0, len(own) - MOST_OF_ONE + 1)])

    async def refused(self, place: Place, why: str) -> None:
        """Write down that somebody could not sign in; so many a minute, the rest is in the log alone."""
        log.warning("sign-in refused", peer=place.peer[:80], why=why)
        now = self._clock.now()
        self._failures = [at for at in self._failures if 0 <= now - at < 60]
        if len(self._failures) < FAILURES_TOLD:
            self._failures.append(now)
            event = Event(now, "pool", Reason.SIGN_IN_FAILED, f"{why} ({_whence(place)})", target="dashboard")
            await self._engine.alone(lambda: self._store.note(event))

    # Being in

    async def actor(self, secret: str, place: Place, *, in_person: bool = True) -> Actor:
        """The user behind a browser's cookie, with the role in force now.

        ``in_person``: a person looks, which keeps the session alive. Raises UNAUTHENTICATED.
        """
        session = self._sessions.get(_digest(secret))
        now = self._clock.now()
        if session is None or session.over(now):
            raise _refused("Your session has ended.")
        if session.peer_uid != place.uid:
            raise _refused("This session is of another browser.")
        user = self._register.users.get(session.user)
        if user is None or user.disabled:
            await self._forget([session])
            raise _refused("Your session has ended.")
        if in_person:
            self._touch(session, now)
        return Actor(user.name, self._role(session, user), f"session {session.id}", user.uid)

    def _role(self, session: Session, user: User) -> Role:
        allowed = Role.ADMIN if user.uid in self._owners else user.role
        return session.role if allowed.includes(session.role) else allowed

    def _touch(self, session: Session, now: float) -> None:
        if now - session.last_used_at < 1.0:
            return
        del self._sessions[session.secret_sha256]  # and put it last: the order is that of use
        self._sessions[session.secret_sha256] = replace(session, last_used_at=now)
        self._used[session.secret_sha256] = now

    def sessions(self, actor: Actor) -> Sequence[Session]:
        """Open sessions, newest first: all for an administrator, one's own for others."""
        now = self._clock.now()
        seen = (s for s in self._sessions.values() if actor.role is Role.ADMIN or s.user == actor.user)
        return sorted((s for s in seen if not s.over(now)), key=lambda s: -s.created_at)

    # Ways out

    async def sign_out(self, secret: str) -> None:
        """End a browser's session, if it has one."""
        session = self._sessions.get(_digest(secret))
        if session is not None:
            await self._forget([session], [self._event(session.user, Reason.SIGNED_OUT, "signed out", session.user)])

    async def end(self, actor: Actor, session_id: str) -> None:
        """End a session of one's own, or anybody's as an administrator; raises NOT_FOUND."""
        found = [session for session in self.sessions(actor) if session.id == session_id]
        if not found:
            raise GpupoolError(ErrorCode.NOT_FOUND, "There is no such session.", "It may have ended by itself.")
        said = f"session {session_id} ended"
        await self._forget(found, [self._event(actor.user, Reason.SIGNED_OUT, said, found[0].user)])

    async def _token_ended(self, token_id: str) -> None:
        self._links = OrderedDict((c, link) for c, link in self._links.items() if link.grant.token_id != token_id)
        await self._forget_where(lambda session: session.token_id == token_id)

    async def _forget_where(self, condition: Callable[[Session], bool]) -> None:
        await self._forget([session for session in self._sessions.values() if condition(session)])

    async def _forget(self, ended: Iterable[Session], events: Sequence[Event] = ()) -> None:
        hashes = [session.secret_sha256 for session in ended]
        for one in hashes:  # at once: what the disk says may take longer
            self._sessions.pop(one, None)
            self._used.pop(one, None)
        if not hashes:
            return
        if events:
            await self._engine.alone(lambda: self._store.drop(hashes, events))
        else:
            await self._store.drop(hashes)

    # In the background

    async def run(self) -> None:
        """Write down what was used, and drop what is over, now and then."""
        while True:
            await self._engine.ports.sleep(SWEEP_EVERY_S)
            try:
                await self.sweep()
            except GpupoolError as error:
                log.warning("could not write sessions", code=error.code)

    async def sweep(self) -> None:
        """Once."""
        now = self._clock.now()
        self._drop_links()
        disabled = {user.name for user in self._register.users.values() if user.disabled}
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


def _whence(place: Place) -> str:
    return "over the network" if place.uid is None else f"uid {place.uid}"


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _refused(sentence: str) -> GpupoolError:
    return GpupoolError(ErrorCode.UNAUTHENTICATED, sentence, _AGAIN)
