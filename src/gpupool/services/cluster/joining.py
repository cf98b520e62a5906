"""Machines that join and leave a cluster: join tokens, the credentials of a new machine, and removal."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.nodes.gpu import NodeState
from gpupool.domain.nodes.heads import Head, MemberKey
from gpupool.domain.nodes.joining import (
    JOIN_PREFIX,
    MAX_TOKEN_LIFETIME_S,
    MAX_TOKEN_USES,
    JoinedMachine,
    JoinText,
    JoinToken,
    Versions,
)
from gpupool.domain.people.access import Actor, Role, secret_hash
from gpupool.services.access.permissions import Permissions
from gpupool.services.access.service import AccessService
from gpupool.services.cluster.heads import HeadOffer, Heads
from gpupool.services.cluster.membership import ClusterMembers, check_member
from gpupool.services.control.engine import Engine
from gpupool.services.nodes.service import NodeService
from gpupool.services.ports.cluster import Authority, Papers

_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The request of a new machine, with the secret of a join token; ``head`` is set if it wants to be a head."""

    secret: str
    node: str
    address: str
    versions: Versions
    certificate_request: str
    head: HeadOffer | None = None


@dataclass(frozen=True, slots=True)
class Charge:
    """The additional secrets of a head: the authority's private key (PEM) and the URL of the database."""

    authority_key: str
    database: str


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a new machine: its membership and credentials; ``charge`` only for a head."""

    member: JoinedMachine
    secret: str
    papers: Papers
    head: tuple[str, int]
    pool_id: str
    heads: tuple[Head, ...] = ()
    charge: Charge | None = None


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """Facts about the pool for new machines; ``listen`` is the network address of its API, if any.

    ``password_file`` and ``passfile`` are files of the head with the password of its database, if it needs one: in
    gpupool's own format, and in libpq's.
    """

    pool_id: str
    listen: str | None
    password_file: str | None = None
    passfile: str | None = None


@dataclass(frozen=True, slots=True)
class Invitation:
    """A new join token: ``text`` is entered on the new machine, ``head`` is the address that it joins.

    A new head needs a copy of ``password_file`` or of ``passfile``, if set.
    """

    token: JoinToken
    text: str
    head: str
    password_file: str | None = None
    passfile: str | None = None


@dataclass(frozen=True, slots=True)
class MemberState:
    """The state of a member in the pool; ``state`` is None before its first report."""

    state: NodeState | None
    gpus: tuple[str, ...] = ()
    held: int = 0
    heads: tuple[Head, ...] = ()


class JoinService:
    """Admits and removes machines. A pool without an authority is not a cluster."""

    def __init__(
        self,
        engine: Engine,
        permissions: Permissions,
        nodes: NodeService,
        info: HeadFacts,
        access: AccessService,
        heads: Heads,
    ) -> None:
        self.heads = heads
        self._engine = engine
        self._permissions = permissions
        self._store = engine.ports.store.joins
        self._nodes = nodes
        self._authority = engine.ports.authority
        self._info = info
        self._access = access
        access.on_revoked(self._parent_revoked)

    # Tokens

    async def create_token(
        self, actor: Actor, *, expires_in_s: float, uses: int = 1, note: str = "", for_head: bool = False
    ) -> Invitation:
        """Create a join token, for administrators; its secret is not stored.

        With ``for_head`` a machine may join as a head; raises UNSUPPORTED if the pool cannot have another head.
        """
        self._permissions.need_role(actor, Role.ADMIN)
        authority = self._need_authority()
        if for_head:
            self.heads.need_room()
        if not 0 < expires_in_s <= MAX_TOKEN_LIFETIME_S:
            raise GpupoolError(
                ErrorCode.INVALID_DURATION, "The lifetime of a join token is at most 30 days.", "Give another lifetime."
            )
        if not 0 < uses <= MAX_TOKEN_USES:
            raise GpupoolError(
                ErrorCode.INVALID_COUNT, f"A join token has 1 to {MAX_TOKEN_USES} uses.", "Give another number."
            )
        now, token_id = self._now, secrets.token_hex(4)
        secret = f"{JOIN_PREFIX}_{token_id}_{secrets.token_hex(20)}"
        ends = min(now + expires_in_s, await self._access.end_of(actor))
        token = JoinToken(
            token_id, secret_hash(secret), actor.user, now, ends, uses, None, note, for_head, actor.token_id
        )
        what = f"join token {token_id} created for {uses} {'heads' if for_head else 'machines'}"
        event = self._event(actor.user, what, f"join token {token_id}")
        await self._engine.run_exclusive(lambda: self._store.save_token(token, event))
        text = JoinText(secret, authority.fingerprint())
        info = self._info
        files = (info.password_file, info.passfile) if for_head else (None, None)
        return Invitation(token, str(text), self._head(authority), *files)

    def _head(self, authority: Authority) -> str:
        host, _, port = (self._info.listen or "").rpartition(":")
        anywhere = host.strip("[]") in {"", "0.0.0.0", "::"}  # noqa: S104 - compared, not bound
        address = authority.address[0]
        return f"{(f'[{address}]' if ':' in address else address) if anywhere else host}:{port}"

    async def tokens(self, actor: Actor) -> Sequence[JoinToken]:
        """Return all join tokens, newest first, for administrators."""
        self._permissions.need_role(actor, Role.ADMIN)
        return await self._store.tokens()

    async def revoke_token(self, actor: Actor, token_id: str) -> None:
        """Revoke a join token, for administrators; machines that joined with it stay. Raises UNKNOWN_TOKEN."""
        found = next((token for token in await self.tokens(actor) if token.id == token_id), None)
        if found is None:
            raise GpupoolError(
                ErrorCode.UNKNOWN_TOKEN, f"There is no join token '{token_id[:80]}'.", "See `gpupool join-token list`."
            )
        if found.revoked_at is None:
            revoked = replace(found, revoked_at=self._now)
            event = self._event(actor.user, f"join token {token_id} revoked", f"join token {token_id}")
            await self._engine.run_exclusive(lambda: self._store.save_token(revoked, event))

    async def _parent_revoked(self, parent: str) -> None:
        """Revoke the join tokens that were created with a revoked network token."""
        for token in await self._store.tokens_made_with(parent):
            if token.revoked_at is None:
                what = f"join token {token.id} revoked with token {parent}, which created it"
                event = self._event("pool", what, f"join token {token.id}")
                revoked = replace(token, revoked_at=self._now)
                await self._engine.run_exclusive(partial(self._store.save_token, revoked, event))

    # Machines

    async def join(self, request: JoinRequest) -> Admission:
        """Admit a machine.

        Raises UNAUTHENTICATED (invalid token), FORBIDDEN (token not for heads), UNSUPPORTED (versions, or no further
        head possible), NAME_TAKEN, INVALID_NAME, INVALID_REQUEST. The token is checked first, so that a machine
        without one learns nothing.
        """
        authority = self._need_authority()
        token = await self._good_token(request.secret)
        charge = self._charge(authority, token) if request.head else None
        check_versions(authority.versions, request.versions)
        _check_node(request.node)
        key = authority.key_of(request.certificate_request)
        await self._need_free(request.node, key)
        papers = authority.papers(request.node, request.address, request.certificate_request)
        head = self._head_of(request, authority)
        secret = secrets.token_urlsafe(32)
        member = JoinedMachine(request.node, secret_hash(secret), key, request.address, self._now, token.id)
        how = f"joined{' as a head' if head else ''} from {request.address}"
        event = self._event(token.created_by, how, f"node {request.node}")
        admitted = False

        async def admit() -> None:
            nonlocal admitted
            admitted = await self._store.admit(token.secret_sha256, member, event, head)

        await self._engine.run_exclusive(admit)
        if not admitted:
            raise _invalid_token("has no uses left")
        heads = await self.heads.refresh()
        return Admission(member, secret, papers, authority.address, self._info.pool_id, heads, charge)

    async def database_for(self, secret: str) -> str:
        """Return the URL of the database, so that a new head can test the connection before it joins.

        Raises UNAUTHENTICATED (invalid token), FORBIDDEN (token not for heads), UNSUPPORTED, OVER_LIMIT.
        """
        return self._charge(self._need_authority(), await self._good_token(secret)).database

    def _charge(self, authority: Authority, token: JoinToken) -> Charge:
        if not token.for_head:
            raise GpupoolError(
                ErrorCode.FORBIDDEN,
                "This join token is for nodes, not for heads.",
                "An administrator creates one for a head with 'gpupool join-token create --head'.",
            )
        return Charge(authority.secret_key(), self.heads.need_room())

    def _head_of(self, request: JoinRequest, authority: Authority) -> Head | None:
        if request.head is None:
            return None
        certificate = authority.checked(request.head.certificate)
        return self.heads.made_of(request.head, request.node, request.address, certificate)

    async def remove(self, actor: Actor, node: str) -> None:
        """Remove a machine permanently and revoke its membership. Raises the errors of ``NodeService.remove``."""
        await self._nodes.remove(actor, node)
        await self.heads.refresh()

    async def knows(self, node: str, secret: str) -> bool:
        """Return True if a machine is a member with this secret."""
        return any(
            member.node == node and member.secret_sha256 == secret_hash(secret)
            for member in await self._store.members()
        )

    async def enrol(self, head: Head, certificate_request: str, secret: str) -> None:
        """Make this machine, the first head, a member with its own secret, like machines that joined."""
        key = self._need_authority().key_of(certificate_request)
        member = JoinedMachine(head.name, secret_hash(secret), key, head.gcs_host, self._now, "")
        event = self._event(head.name, "is a member as a head", f"node {head.name}")
        await self._engine.run_exclusive(lambda: self._store.save_member(member, event))

    async def standing(self, node: str, secret: str) -> MemberState:
        """Return the state of the calling machine in the pool. Raises NODE_REMOVED, UNAUTHENTICATED."""
        heads = await self.heads_for(node, secret)
        try:
            found = await self._nodes.node(node)
        except GpupoolError:
            return MemberState(None, heads=heads)
        held = len(await self._nodes.occupants(node))
        return MemberState(found.state, tuple(gpu.model for gpu in found.report.gpus), held, heads)

    async def leave(self, node: str, secret: str, *, force: bool) -> MemberState:
        """Prepare a machine to leave: cordon it and preempt its preemptible workloads.

        Raises UNAUTHENTICATED; WRONG_STATE for the leader, and while replicas run there or homes of workspaces are
        stored there. With ``force`` replicas are stopped, and homes are not checked.
        """
        standing = await self.standing(node, secret)
        if self.heads.leads(node):
            raise GpupoolError(
                ErrorCode.WRONG_STATE,
                f"{node} is the leader of the pool.",
                "Stop it with 'gpupool down', so that another head leads, start it again with 'gpupool up', and leave."
                if len(self.heads.known) > 1
                else "It is the only head: add another first, with 'gpupool join-token create --head'.",
            )
        if standing.state is None:
            return standing
        if not force:
            self._nodes.require_no_homes(node, "Delete them first, or leave with --force: the pool loses their files.")
        await self._nodes.cordon(_itself(node), node, "it leaves the pool", drain=True)
        if force:
            await self._nodes.end_work(node, f"{node} left the pool")
            return await self.standing(node, secret)
        standing = await self.standing(node, secret)
        if standing.held:
            raise GpupoolError(
                ErrorCode.WRONG_STATE,
                f"{standing.held} programs still run on {node}, which is now cordoned.",
                "Wait and leave again, or use --force to stop them. 'gpupool uncordon' cancels leaving.",
            )
        return standing

    async def gone(self, node: str, secret: str) -> MemberState:
        """Remove a machine that has stopped. Raises UNAUTHENTICATED; WRONG_STATE while it answers or has replicas."""
        standing = await self.standing(node, secret)
        if standing.state is not None:
            await self._nodes.remove(_itself(node), node, keep_homes=False)  # `leave` has checked
        else:
            event = self._event(node, "left the pool", f"node {node}")
            await self._engine.run_exclusive(lambda: self._store.drop_member(node, event))
        await self.heads.refresh()
        return standing

    async def membership(self) -> ClusterMembers:
        """Return the machines of the cluster and those that were removed, for checks of their secrets."""
        heads = {head.name for head in await self._store.heads()}
        members = await self._store.members()
        keys = [MemberKey(member.node, member.secret_sha256, member.node in heads) for member in members]
        return ClusterMembers(keys, await self._store.removed())

    async def heads_for(self, node: str, secret: str) -> tuple[Head, ...]:
        """Return all heads, to a machine of the cluster. Raises NODE_REMOVED, UNAUTHENTICATED."""
        check_member(node, secret, *await self.membership())
        return self.heads.known

    async def _good_token(self, secret: str) -> JoinToken:
        digest = secret_hash(secret)
        found = next((token for token in await self._store.tokens() if token.secret_sha256 == digest), None)
        if found is None:
            raise _invalid_token("is unknown")
        if found.revoked_at is not None:
            raise _invalid_token("has been revoked")
        if not found.good(self._now):
            raise _invalid_token("has expired" if found.uses_left else "has no uses left")
        return found

    async def _need_free(self, node: str, key: str) -> None:
        member = next((member for member in await self._store.members() if member.node == node), None)
        known = {found.name for found in await self._nodes.nodes()}
        if node in known and (member is None or member.key_sha256 != key):
            raise GpupoolError(
                ErrorCode.NAME_TAKEN,
                f"The pool already has a node {node}.",
                "Give this machine another name with --name, or have an administrator run "
                f"'gpupool node remove {node}' if it is the same machine.",
            )

    def _need_authority(self) -> Authority:
        if self._authority is None:
            raise GpupoolError(
                ErrorCode.UNSUPPORTED,
                "This pool is one machine.",
                "Make it a cluster: 'gpupool down', then 'gpupool up --cluster'. Jobs continue to run.",
            )
        return self._authority

    @property
    def _now(self) -> float:
        return self._engine.ports.clock.now()

    def _event(self, by: str, what: str, target: str) -> Event:
        return Event(self._now, by, Reason.CHANGED, what, target=target)


def check_versions(head: Versions, node: Versions) -> None:
    """Raise UNSUPPORTED unless a machine with these versions can join; gpupool may differ in the patch version."""
    rows = (
        ("Ray", head.ray, node.ray, head.ray == node.ray),
        ("Python", head.python, node.python, head.python == node.python),
        ("gpupool", head.gpupool, node.gpupool, head.gpupool.split(".")[:2] == node.gpupool.split(".")[:2]),
    )
    wrong = [f"{name} {theirs} (the head has {ours})" for name, ours, theirs, fits in rows if not fits]
    if wrong:
        raise GpupoolError(
            ErrorCode.UNSUPPORTED,
            f"This machine has {', '.join(wrong)}.",
            "Install the same versions as on the head: Ray requires the same Ray and Python versions.",
        )


def _itself(node: str) -> Actor:
    """Return the actor for a machine, which may change itself like an administrator."""
    return Actor(f"node {node}", Role.ADMIN, "its own secret")


def _check_node(name: str) -> None:
    if not _NODE_NAME.fullmatch(name):
        raise GpupoolError(
            ErrorCode.INVALID_NAME, f"'{name[:80]}' is not a valid node name.", "Use letters, digits, '.', '_', '-'."
        )


def _invalid_token(how: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.UNAUTHENTICATED,
        f"The join token {how}.",
        "Create another on the head with 'gpupool join-token create'.",
    )
