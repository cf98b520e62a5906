"""Who is calling, and the administration of users, projects and tokens."""

from __future__ import annotations

import hashlib
import hmac
import pwd
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from gpupool.domain.access import DEFAULT_PROJECT, Actor, Project, Role, Token, User
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.ids import check_name
from gpupool.domain.rules import check_rules
from gpupool.domain.sharing import check_project
from gpupool.domain.units import MOST_GPUS_PERMILLE, WHOLE_GPU, format_permille
from gpupool.domain.workload import ReplicaState
from gpupool.services.departments import check_shares
from gpupool.services.engine import Engine
from gpupool.services.permissions import Permissions, forbidden
from gpupool.services.register import Register

TOKEN_PREFIX = "gpt"  # noqa: S105 - what every token begins with
MAX_TOKEN_LIFE_S = 366 * 86400.0
TOUCH_EVERY_S = 60.0
LONGEST_EMAIL = 254
_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")  # RFC 5322's dot-atoms


class AccessService:
    """Users, projects and tokens. ``owner_uid`` is the account that the pool runs as: it and root administer."""

    def __init__(self, engine: Engine, register: Register, permissions: Permissions, owner_uid: int) -> None:
        self._engine = engine
        self._store = engine.ports.store
        self._register = register
        self._permissions = permissions
        self._owner_uid = owner_uid
        self.on_revoked: Callable[[str], Awaitable[None]] | None = None  # told of tokens that are no longer good

    # Who is calling

    async def actor_for_uid(self, uid: int) -> Actor:
        """The user behind a process of this machine, made on first sight; raises FORBIDDEN for a disabled one."""
        user = self._register.user_by_uid(uid) or await self._first_sight(uid)
        self._need_enabled(user)
        owner = uid in {0, self._owner_uid}
        return Actor(user.name, Role.ADMIN if owner else user.role, f"uid {uid}", uid)

    async def _first_sight(self, uid: int) -> User:
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = f"uid-{uid}"
        taken = self._register.users.get(name)
        if taken is not None and taken.uid is not None:
            name = f"{name}-{uid}"
        role = Role.ADMIN if uid in {0, self._owner_uid} else Role.MEMBER
        user = replace(taken, uid=uid) if taken is not None and taken.uid is None else User(name, role, uid)
        return await self._save_user(user, "pool", "seen for the first time")

    async def actor_for_token(self, secret: str) -> Actor:
        """The user behind a token; raises ``GpupoolError(UNAUTHENTICATED)`` for one that is not (or no more) good."""
        digest = _digest(secret)
        token = await self._store.find_token(digest)
        now = self._engine.ports.clock.now()
        if token is None or not hmac.compare_digest(token.secret_sha256, digest):
            raise _no_good("The token is not known here.")
        if token.revoked_at is not None:
            raise _no_good("The token has been revoked.")
        if now >= token.expires_at:
            raise _no_good("The token has expired.")
        user = self._register.user(token.user)
        self._need_enabled(user)
        if token.last_used_at is None or now - token.last_used_at > TOUCH_EVERY_S:
            await self._store.touch_token(token.id, now)
        role = token.role if user.role.includes(token.role) or self._is_owner(user) else user.role
        return Actor(user.name, role, f"token {token.id}", user.uid)

    def _is_owner(self, user: User) -> bool:
        return user.uid in {0, self._owner_uid}

    def _need_enabled(self, user: User) -> None:
        if user.disabled:
            raise forbidden(f"The user {user.name} is disabled.")

    # Users

    async def users(self) -> Sequence[User]:
        """All users by name."""
        return [self._register.users[name] for name in sorted(self._register.users)]

    async def put_user(self, actor: Actor, name: str, changes: dict[str, Any]) -> User:
        """Make or change a user. For administrators; one's own e-mail address is everybody's to change.

        Raises FORBIDDEN, INVALID_NAME, NAME_TAKEN (of a uid), INVALID_COUNT, INVALID_REQUEST (an address that is none).
        """
        own = actor.user == name and set(changes) <= {"email"} and actor.role is not Role.VIEWER
        self._permissions.need_role(actor, actor.role if own else Role.ADMIN)
        user = self._register.users.get(name) or User(check_name(name, "user"))
        changed = replace(user, **changes)
        owner = changed.uid is not None and self._register.user_by_uid(changed.uid)
        if owner and owner.name != name:
            raise GpupoolError(ErrorCode.NAME_TAKEN, f"uid {changed.uid} is {owner.name}'s.", "Give another uid.")
        _check_permille(changed.gpu_limit_permille)
        check_email(changed.email)
        return await self._save_user(changed, actor.user, _said_of(changed, changes))

    async def _save_user(self, user: User, by: str, what: str) -> User:
        event = Event(self._engine.ports.clock.now(), by, Reason.CHANGED, what, target=f"user {user.name}")

        async def write() -> None:
            await self._store.save_user(user, event)
            self._register.users[user.name] = user
            self._engine.demand.user_changed(user)

        await self._engine.alone(write)
        self._engine.work.set()
        return user

    # Projects

    async def projects(self) -> Sequence[Project]:
        """All projects by name."""
        return [self._register.projects[name] for name in sorted(self._register.projects)]

    async def project_load(self, name: str) -> tuple[int, int]:
        """GPU thousandths that a project holds, and how many of its replicas wait."""
        mirror = self._engine.mirror
        held = sum(lease.permille for lease in mirror.leases.values() if lease.project == name)
        waiting = sum(
            mirror.counts[workload.id][ReplicaState.PENDING]
            for workload in mirror.workloads.values()
            if workload.project == name
        )
        return held, waiting

    async def create_project(self, actor: Actor, project: Project) -> Project:
        """Make a project. For administrators; raises NAME_TAKEN."""
        self._permissions.need_role(actor, Role.ADMIN)
        check_name(project.name, "project")
        if project.name in self._register.projects:
            raise GpupoolError(
                ErrorCode.NAME_TAKEN, f"There is a project '{project.name}' already.", "Choose another name."
            )
        return await self._save_project(actor, project, "created")

    async def change_project(self, actor: Actor, name: str, changes: dict[str, Any]) -> Project:
        """Change a project: everything for administrators, its members for its managers.

        ``changes`` are fields of ``Project``; of its ``rules`` those that are named.
        """
        project = self._register.project(name)
        own = actor.role is Role.MANAGER and actor.user in project.members and set(changes) <= {"members", "note"}
        if not own:
            self._permissions.need_role(actor, Role.ADMIN)
        named = ", ".join(sorted(changes))
        changes = changes | {"rules": replace(project.rules, **changes.get("rules", {}))}
        return await self._save_project(actor, replace(project, **changes), f"changed: {named}")

    async def _save_project(self, actor: Actor, project: Project, what: str) -> Project:
        for bound in (project.quota_permille, project.limit_permille, project.user_limit_permille):
            _check_permille(bound)
        check_project(project)
        check_shares(project, self._register)
        check_rules(project.rules)
        for member in project.members:
            self._register.user(member)
        event = self._event(actor, what, f"project {project.name}")

        async def write() -> None:
            await self._store.save_project(project, event)
            self._register.projects[project.name] = project
            self._engine.demand.project_changed(project)

        await self._engine.alone(write)
        self._engine.wake(None)
        self._engine.work.set()
        return project

    async def delete_project(self, actor: Actor, name: str) -> None:
        """Remove a project without live work. For administrators."""
        self._permissions.need_role(actor, Role.ADMIN)
        project = self._register.project(name)
        if name == DEFAULT_PROJECT:
            raise GpupoolError(ErrorCode.WRONG_STATE, "The default project stays.", "Set its quota to bound it.")

        async def write() -> None:
            if any(w.project == name for w in self._engine.mirror.workloads.values()):
                raise GpupoolError(
                    ErrorCode.WRONG_STATE, f"The project {name} has live work.", "Stop its workloads first."
                )
            await self._store.delete_project(name, self._event(actor, "deleted", f"project {name}"))
            del self._register.projects[project.name]
            self._engine.demand.project_removed(name)

        await self._engine.alone(write)

    # Tokens

    async def create_token(
        self, actor: Actor, *, user: str, role: Role | None, expires_in_s: float, note: str = ""
    ) -> tuple[Token, str]:
        """A new token and its secret, which is kept nowhere. For oneself, or for anybody as an administrator."""
        self._permissions.need_role(actor, Role.ADMIN if user != actor.user else Role.VIEWER)
        owner = self._register.user(user)
        wanted = role or (Role.ADMIN if self._is_owner(owner) else owner.role)
        self._permissions.need_role(actor, wanted)
        if not 0 < expires_in_s <= MAX_TOKEN_LIFE_S:
            raise GpupoolError(
                ErrorCode.INVALID_DURATION, "A token lives from a second to 366 days.", "Give another expiry."
            )
        now = self._engine.ports.clock.now()
        token_id = secrets.token_hex(4)
        secret = f"{TOKEN_PREFIX}_{token_id}_{secrets.token_urlsafe(32)}"
        token = Token(token_id, user, _digest(secret), wanted, now, now + expires_in_s, note=note)
        event = self._event(actor, f"token {token_id} made, role {wanted}", f"user {user}")
        await self._engine.alone(lambda: self._store.save_token(token, event))
        return token, secret

    async def tokens(self, actor: Actor) -> Sequence[Token]:
        """All tokens for an administrator, one's own for others."""
        return await self._store.list_tokens(None if actor.role is Role.ADMIN else actor.user)

    async def revoke_token(self, actor: Actor, token_id: str) -> None:
        """Make a token useless at once; raises UNKNOWN_TOKEN for one that is not the caller's to revoke."""
        found = next((token for token in await self.tokens(actor) if token.id == token_id), None)
        if found is None:
            raise GpupoolError(
                ErrorCode.UNKNOWN_TOKEN, f"There is no token '{token_id[:80]}'.", "See `gpupool token list`."
            )
        if found.revoked_at is None:
            revoked = replace(found, revoked_at=self._engine.ports.clock.now())
            event = self._event(actor, f"token {token_id} revoked", f"user {found.user}")
            await self._engine.alone(lambda: self._store.save_token(revoked, event))
            if self.on_revoked is not None:
                await self.on_revoked(token_id)

    async def token_expiry(self, token_id: str) -> float:
        """When a token ends; 0 for one that is not known or revoked."""
        found = next((token for token in await self._store.list_tokens() if token.id == token_id), None)
        return found.expires_at if found is not None and found.revoked_at is None else 0.0

    def _event(self, actor: Actor, what: str, target: str) -> Event:
        return Event(self._engine.ports.clock.now(), actor.user, Reason.CHANGED, what, target=target)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _no_good(sentence: str) -> GpupoolError:
    return GpupoolError(ErrorCode.UNAUTHENTICATED, sentence, "Ask for a new one: `gpupool token create`.")


def _said_of(user: User, changes: dict[str, Any]) -> str:
    """What an event says of a change: values, but for the address, which is nobody else's business."""
    others = sorted(set(changes) - {"role"})
    return ", ".join([f"role {user.role}", *(_field_text(user, name) for name in others)])


def _field_text(user: User, name: str) -> str:
    if name == "email":
        return "e-mail address " + ("changed" if user.email else "removed")
    if name == "disabled":
        return "disabled" if user.disabled else "enabled"
    if name == "gpu_limit_permille":
        return f"GPU limit {'none' if user.gpu_limit_permille is None else format_permille(user.gpu_limit_permille)}"
    return f"uid {user.uid}"


def check_email(address: str) -> None:
    """Raise ``GpupoolError(INVALID_REQUEST)`` for what is no e-mail address; empty is none at all."""
    if address and (len(address) > LONGEST_EMAIL or not _EMAIL.fullmatch(address)):
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"'{address[:40]}' is not an e-mail address.", "Write it like ann@example.org."
        )


def _check_permille(bound: int | None) -> None:
    if bound is not None and not 0 <= bound <= MOST_GPUS_PERMILLE:
        raise GpupoolError(
            ErrorCode.INVALID_COUNT, f"{bound / WHOLE_GPU:g} GPUs is not a possible bound.", "Give 0 or more."
        )
