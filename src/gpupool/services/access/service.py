"""Access service: authenticate callers, and administer users, projects and tokens."""

from __future__ import annotations

import hmac
import math
import pwd
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.ids import check_name
from gpupool.domain.people.access import DEFAULT_PROJECT, Actor, Project, Role, Scope, Token, User, secret_hash
from gpupool.domain.units import MAX_GPUS_PERMILLE, WHOLE_GPU, format_permille
from gpupool.domain.work.rules import check_rules
from gpupool.domain.work.sharing_policy import check_project
from gpupool.domain.work.workload import ReplicaState
from gpupool.services.access.departments import check_shares
from gpupool.services.access.permissions import Permissions, forbidden
from gpupool.services.control.engine import Engine
from gpupool.services.state.identity_cache import IdentityCache
from gpupool.services.state.service_registry import ServiceRegistry

TOKEN_PREFIX = "gpt"  # noqa: S105 - what every token begins with
MAX_TOKEN_LIFETIME_S = 366 * 86400.0
TOUCH_INTERVAL_S = 60.0
MAX_EMAIL_LENGTH = 254
_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")  # RFC 5322's dot-atoms

# What managers may change in their projects: rules that divide what the project has among its users.
MANAGED_FIELDS = {"members", "note", "rules"}
MANAGED_RULES = {"max_priority", "user_weights", "user_quotas", "user_gpu_hours"}


class AccessService:
    """Users, projects and tokens. ``owner_uid`` is the account of the pool; it and root are administrators."""

    def __init__(
        self,
        engine: Engine,
        identities: IdentityCache,
        permissions: Permissions,
        owner_uid: int,
        services: ServiceRegistry,
    ) -> None:
        self._services = services
        self._engine = engine
        self._store = engine.ports.store
        self._identities = identities
        self._permissions = permissions
        self._owner_uid = owner_uid
        self._on_revoked: list[Callable[[str], Awaitable[None]]] = []

    def on_revoked(self, act: Callable[[str], Awaitable[None]]) -> None:
        """Call ``act`` with the id of each token that is revoked."""
        self._on_revoked.append(act)

    # Authentication

    async def actor_for_uid(self, uid: int) -> Actor:
        """Return the user of a local process, created at its first call; raises FORBIDDEN for a disabled user."""
        user = self._identities.user_by_uid(uid) or await self._first_sight(uid)
        self._need_enabled(user)
        owner = uid in {0, self._owner_uid}
        return Actor(user.name, Role.ADMIN if owner else user.role, f"uid {uid}", uid)

    async def _first_sight(self, uid: int) -> User:
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = f"uid-{uid}"
        taken = self._identities.users.get(name)
        if taken is not None and taken.uid is not None:
            name = f"{name}-{uid}"
        role = Role.ADMIN if uid in {0, self._owner_uid} else Role.MEMBER
        user = replace(taken, uid=uid) if taken is not None and taken.uid is None else User(name, role, uid)
        return await self._save_user(user, "pool", "first use")

    async def actor_for_token(self, secret: str) -> Actor:
        """Return the user of a token; raises ``GpupoolError(UNAUTHENTICATED)`` for an invalid or expired token."""
        digest = secret_hash(secret)
        token = await self._store.tokens.find(digest)
        now = self._engine.ports.clock.now()
        if token is None or not hmac.compare_digest(token.secret_sha256, digest):
            raise _invalid_token("The token is unknown.")
        if token.revoked_at is not None:
            raise _invalid_token("The token has been revoked.")
        if now >= token.expires_at:
            raise _invalid_token("The token has expired.")
        user = self._identities.user(token.user)
        self._need_enabled(user)
        if token.last_used_at is None or now - token.last_used_at > TOUCH_INTERVAL_S:
            await self._store.tokens.touch(token.id, now)
        role = token.role if user.role.includes(token.role) or self._is_owner(user) else user.role
        return Actor(user.name, role, f"token {token.id}", user.uid, token.scope, token.id)

    def _is_owner(self, user: User) -> bool:
        return user.uid in {0, self._owner_uid}

    def _need_enabled(self, user: User) -> None:
        if user.disabled:
            raise forbidden(f"The user {user.name} is disabled.")

    # Users

    async def users(self) -> Sequence[User]:
        """Return all users, sorted by name."""
        return [self._identities.users[name] for name in sorted(self._identities.users)]

    def user(self, name: str) -> User:
        """Return a user; raises UNKNOWN_USER."""
        return self._identities.user(name)

    async def put_user(self, actor: Actor, name: str, changes: dict[str, Any]) -> User:
        """Create or change a user, for administrators. Members may change their own e-mail address.

        Raises FORBIDDEN, INVALID_NAME, NAME_TAKEN (of a uid), INVALID_COUNT, INVALID_REQUEST (invalid address).
        """
        own = actor.user == name and set(changes) <= {"email"} and actor.role is not Role.VIEWER
        self._permissions.need_role(actor, actor.role if own else Role.ADMIN)
        user = self._identities.users.get(name) or User(check_name(name, "user"))
        changed = replace(user, **changes)
        owner = changed.uid is not None and self._identities.user_by_uid(changed.uid)
        if owner and owner.name != name:
            raise GpupoolError(ErrorCode.NAME_TAKEN, f"uid {changed.uid} belongs to {owner.name}.", "Give another uid.")
        _check_permille(changed.gpu_limit_permille)
        check_email(changed.email)
        return await self._save_user(changed, actor.user, _describe_change(changed, changes))

    async def _save_user(self, user: User, by: str, what: str) -> User:
        event = self._engine.change_event(by, what, f"user {user.name}")

        async def write() -> None:
            await self._store.users.save(user, event)
            self._identities.users[user.name] = user
            self._engine.feed.user_changed(user)

        await self._engine.run_exclusive(write)
        self._engine.work.set()
        return user

    # Projects

    async def projects(self) -> Sequence[Project]:
        """Return all projects, sorted by name."""
        return [self._identities.projects[name] for name in sorted(self._identities.projects)]

    def project(self, name: str) -> Project:
        """Return a project; raises UNKNOWN_PROJECT."""
        return self._identities.project(name)

    async def project_load(self, name: str) -> tuple[int, int]:
        """Return the GPUs that a project uses, in thousandths, and the number of its waiting replicas."""
        mirror = self._engine.mirror
        held = sum(lease.permille for lease in mirror.leases.values() if lease.project == name)
        waiting = sum(
            mirror.counts[workload.id][ReplicaState.PENDING]
            for workload in mirror.workloads.values()
            if workload.project == name
        )
        return held, waiting

    async def create_project(self, actor: Actor, project: Project) -> Project:
        """Create a project, for administrators; raises NAME_TAKEN."""
        self._permissions.need_role(actor, Role.ADMIN)
        check_name(project.name, "project")
        if project.name in self._identities.projects:
            raise GpupoolError(
                ErrorCode.NAME_TAKEN, f"The project '{project.name}' already exists.", "Choose another name."
            )
        return await self._save_project(actor, project, "created")

    async def change_project(self, actor: Actor, name: str, changes: dict[str, Any]) -> Project:
        """Change a project. Administrators may change all fields, its managers its members, note and rules for them.

        ``changes`` has fields of ``Project``; in ``rules`` only the named rules change.
        """
        project = self._identities.project(name)
        own = actor.role is Role.MANAGER and actor.user in project.members
        own = own and set(changes) <= MANAGED_FIELDS and set(changes.get("rules", {})) <= MANAGED_RULES
        if not own:
            self._permissions.need_role(actor, Role.ADMIN)
        named = ", ".join(sorted(changes))
        changes = changes | {"rules": replace(project.rules, **changes.get("rules", {}))}
        return await self._save_project(actor, replace(project, **changes), f"changed: {named}")

    async def _save_project(self, actor: Actor, project: Project, what: str) -> Project:
        for bound in (project.quota_permille, project.limit_permille, project.user_limit_permille):
            _check_permille(bound)
        check_project(project)
        check_shares(project, self._identities)
        check_rules(project.rules)
        for member in project.members:
            self._identities.user(member)
        event = self._engine.change_event(actor.user, what, f"project {project.name}")

        async def write() -> None:
            await self._store.projects.save(project, event)
            self._identities.projects[project.name] = project
            self._engine.feed.project_changed(project)

        await self._engine.run_exclusive(write)
        self._engine.wake(None)
        self._engine.work.set()
        return project

    def gpu_hours_used(self, project: str) -> float | None:
        """Return the GPU hours that a project has used this month; None without a budget."""
        return self._engine.feed.budgets.used_by(project)

    async def delete_project(self, actor: Actor, name: str) -> None:
        """Delete a project without live workloads and services, for administrators."""
        self._permissions.need_role(actor, Role.ADMIN)
        project = self._identities.project(name)
        if name == DEFAULT_PROJECT:
            raise GpupoolError(
                ErrorCode.WRONG_STATE, "The default project cannot be deleted.", "Set a quota or limit for it instead."
            )

        async def write() -> None:
            if any(w.project == name for w in self._engine.mirror.workloads.values()):
                raise GpupoolError(ErrorCode.WRONG_STATE, f"The project {name} has live workloads.", "Stop them first.")
            if kept := [row.name for row in self._services.rows.values() if row.project == name]:
                raise GpupoolError(
                    ErrorCode.WRONG_STATE,
                    f"The project {name} has services: {', '.join(kept[:5])}.",
                    "Stop and delete them first.",
                )
            await self._store.projects.delete(name, self._engine.change_event(actor.user, "deleted", f"project {name}"))
            del self._identities.projects[project.name]
            self._engine.feed.project_removed(name)

        await self._engine.run_exclusive(write)

    # Tokens

    async def create_token(
        self,
        actor: Actor,
        *,
        user: str,
        role: Role | None,
        expires_in_s: float,
        note: str = "",
        scope: Scope | None = None,
    ) -> tuple[Token, str]:
        """Create a token; return it with its secret, which is not stored.

        Users create tokens for themselves, administrators for all users. A token created with another token has at most
        its role and scope, expires with it, and is revoked with it. Raises FORBIDDEN, INVALID_DURATION, UNKNOWN_USER,
        UNAUTHENTICATED (the other token was just revoked).
        """
        self._permissions.need_role(actor, Role.ADMIN if user != actor.user else Role.VIEWER)
        owner = self._identities.user(user)
        wanted = role or (Role.ADMIN if self._is_owner(owner) else owner.role)
        self._permissions.need_role(actor, wanted)
        allowed = scope or actor.scope
        if not actor.scope.includes(allowed):
            raise forbidden(f"This token has the scope {actor.scope}; it cannot create one with {allowed}.")
        if not 0 < expires_in_s <= MAX_TOKEN_LIFETIME_S:
            raise GpupoolError(
                ErrorCode.INVALID_DURATION, "The lifetime of a token is 1 second to 366 days.", "Give another lifetime."
            )
        now = self._engine.ports.clock.now()
        token_id = secrets.token_hex(4)
        secret = f"{TOKEN_PREFIX}_{token_id}_{secrets.token_urlsafe(32)}"
        ends = min(now + expires_in_s, await self.end_of(actor))
        token = Token(
            token_id,
            user,
            secret_hash(secret),
            wanted,
            now,
            ends,
            note=note,
            scope=allowed,
            parent=actor.token_id,
        )
        what = f"token {token_id} created, role {wanted}, scope {allowed}"
        what += f", by token {actor.token_id}" if actor.token_id else ""
        event = self._engine.change_event(actor.user, what, f"user {user}")

        async def write() -> None:
            await self.end_of(actor)  # raises if the other token was revoked since
            await self._store.tokens.save(token, event)

        await self._engine.run_exclusive(write)
        return token, secret

    async def end_of(self, actor: Actor) -> float:
        """Return the latest expiry of credentials that this caller creates: that of its token, or infinity.

        Raises UNAUTHENTICATED if the token is no longer valid.
        """
        if not actor.token_id:
            return math.inf
        ends = await self.token_expiry(actor.token_id)
        if ends <= self._engine.ports.clock.now():
            raise _invalid_token("The token is no longer valid.")
        return ends

    async def tokens(self, actor: Actor) -> Sequence[Token]:
        """Return all tokens for an administrator, the user's own for others."""
        return await self._store.tokens.list(None if actor.role is Role.ADMIN else actor.user)

    async def token(self, actor: Actor, token_id: str) -> Token:
        """Return a token; raises UNKNOWN_TOKEN also for a token that the caller may not see."""
        found = next((token for token in await self.tokens(actor) if token.id == token_id), None)
        if found is None:
            raise GpupoolError(
                ErrorCode.UNKNOWN_TOKEN, f"There is no token '{token_id[:80]}'.", "See `gpupool token list`."
            )
        return found

    async def revoke_token(self, actor: Actor, token_id: str) -> None:
        """Revoke a token; raises UNKNOWN_TOKEN also for a token that the caller may not revoke."""
        found = await self.token(actor, token_id)
        if found.revoked_at is None:
            revoked: list[str] = []

            async def write() -> None:
                for token in _with_descendants(found, await self._store.tokens.list()):
                    what = _describe_revocation(token, token_id)
                    event = self._engine.change_event(actor.user, what, f"user {token.user}")
                    ended = replace(token, revoked_at=self._engine.ports.clock.now())
                    await self._store.tokens.save(ended, event)
                    revoked.append(token.id)

            await self._engine.run_exclusive(write)
            for each in revoked:
                for act in self._on_revoked:
                    await act(each)

    async def token_expiry(self, token_id: str) -> float:
        """Return when a token expires; 0 for an unknown or revoked one."""
        found = next((token for token in await self._store.tokens.list() if token.id == token_id), None)
        return found.expires_at if found is not None and found.revoked_at is None else 0.0


def _with_descendants(token: Token, tokens: Sequence[Token]) -> list[Token]:
    """Return ``token`` and all unrevoked tokens created from it, each before the one that created it."""
    found = [token]
    for parent in found:
        found += [other for other in tokens if other.parent == parent.id and other.revoked_at is None]
    return found[::-1]


def _describe_revocation(token: Token, first: str) -> str:
    return f"token {token.id} revoked" + ("" if token.id == first else f" with token {first}, which created it")


def _invalid_token(sentence: str) -> GpupoolError:
    return GpupoolError(ErrorCode.UNAUTHENTICATED, sentence, "Ask for a new one: `gpupool token create`.")


def _describe_change(user: User, changes: dict[str, Any]) -> str:
    """Describe a change for an event; an e-mail address is private and left out."""
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
    """Raise ``GpupoolError(INVALID_REQUEST)`` if it is not a valid e-mail address; empty is allowed."""
    if address and (len(address) > MAX_EMAIL_LENGTH or not _EMAIL.fullmatch(address)):
        raise GpupoolError(
            ErrorCode.INVALID_REQUEST, f"'{address[:40]}' is not an e-mail address.", "Write it like ann@example.org."
        )


def _check_permille(bound: int | None) -> None:
    if bound is not None and not 0 <= bound <= MAX_GPUS_PERMILLE:
        raise GpupoolError(
            ErrorCode.INVALID_COUNT, f"{bound / WHOLE_GPU:g} GPUs is not a valid limit.", "Give 0 or more."
        )
