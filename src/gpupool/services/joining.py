"""Machines join and leave: tokens that let them in, and what a new machine is given."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpupool.domain.access import Actor, Role
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.domain.events import Event, Reason
from gpupool.domain.gpu import NodeState
from gpupool.domain.heads import Head
from gpupool.domain.joining import JOIN_PREFIX, LONGEST_LIFE_S, MOST_USES, JoinText, JoinToken, Member, Versions
from gpupool.services.authority import Authority, Papers
from gpupool.services.engine import Engine
from gpupool.services.heads import HeadOffer, Heads
from gpupool.services.nodes import NodeService
from gpupool.services.permissions import Permissions

_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a new machine says of itself, with the secret of a join token; ``head``: it wants to be one."""

    secret: str
    node: str
    address: str
    versions: Versions
    certificate_request: str
    head: HeadOffer | None = None


@dataclass(frozen=True, slots=True)
class Charge:
    """What a head gets above a node: the authority's key (PEM), and where the database is."""

    authority_key: str
    database: str


@dataclass(frozen=True, slots=True)
class Admission:
    """What it gets: how it is known from now on, and all it needs to take part; ``charge`` only as a head."""

    member: Member
    secret: str
    papers: Papers
    head: tuple[str, int]
    pool_id: str
    heads: tuple[Head, ...] = ()
    charge: Charge | None = None


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """What new machines are told of the pool; ``listen`` is where its API is on the network, if it is."""

    pool_id: str
    listen: str | None


@dataclass(frozen=True, slots=True)
class Invitation:
    """A join token just made: ``text`` is what an administrator carries to a new machine, ``head`` where that joins."""

    token: JoinToken
    text: str
    head: str


@dataclass(frozen=True, slots=True)
class Standing:
    """How a member is seen by the pool; ``state`` is None before its first report."""

    state: NodeState | None
    gpus: tuple[str, ...] = ()
    held: int = 0
    heads: tuple[Head, ...] = ()


class JoinService:
    """Lets machines in and out; a pool without an authority is no cluster."""

    def __init__(
        self, engine: Engine, permissions: Permissions, nodes: NodeService, info: HeadFacts, heads: Heads | None = None
    ) -> None:
        self.heads = heads or Heads(engine, None, None)
        self._engine = engine
        self._permissions = permissions
        self._store = engine.ports.store.joins
        self._nodes = nodes
        self._authority = engine.ports.authority
        self._info = info

    # Tokens

    async def create_token(
        self, actor: Actor, *, expires_in_s: float, uses: int = 1, note: str = "", for_head: bool = False
    ) -> Invitation:
        """A new join token with its secret, which is kept nowhere. For administrators of a cluster's head.

        With ``for_head`` a machine may join as one that can lead; raises UNSUPPORTED where none can.
        """
        self._permissions.need_role(actor, Role.ADMIN)
        authority = self._need_authority()
        if for_head:
            self.heads.need_room()
        if not 0 < expires_in_s <= LONGEST_LIFE_S:
            raise GpupoolError(
                ErrorCode.INVALID_DURATION, "A join token lives at most 30 days.", "Give another expiry."
            )
        if not 0 < uses <= MOST_USES:
            raise GpupoolError(
                ErrorCode.INVALID_COUNT, f"A join token has 1 to {MOST_USES} uses.", "Give another number."
            )
        now, token_id = self._now, secrets.token_hex(4)
        secret = f"{JOIN_PREFIX}_{token_id}_{secrets.token_hex(20)}"
        token = JoinToken(token_id, _digest(secret), actor.user, now, now + expires_in_s, uses, None, note, for_head)
        what = f"join token {token_id} made for {uses} {'heads' if for_head else 'machines'}"
        event = self._event(actor.user, what, f"join token {token_id}")
        await self._engine.alone(lambda: self._store.save_token(token, event))
        text = JoinText(secret, authority.fingerprint())
        return Invitation(token, str(text), self._head(authority))

    def _head(self, authority: Authority) -> str:
        host, _, port = (self._info.listen or "").rpartition(":")
        anywhere = host.strip("[]") in {"", "0.0.0.0", "::"}  # noqa: S104 - compared, not bound
        address = authority.address[0]
        return f"{(f'[{address}]' if ':' in address else address) if anywhere else host}:{port}"

    async def tokens(self, actor: Actor) -> Sequence[JoinToken]:
        """All of them, newest first. For administrators."""
        self._permissions.need_role(actor, Role.ADMIN)
        return await self._store.tokens()

    async def revoke_token(self, actor: Actor, token_id: str) -> None:
        """Make a join token useless; machines that joined with it stay. For administrators. Raises UNKNOWN_TOKEN."""
        found = next((token for token in await self.tokens(actor) if token.id == token_id), None)
        if found is None:
            raise GpupoolError(
                ErrorCode.UNKNOWN_TOKEN, f"There is no join token '{token_id[:80]}'.", "See `gpupool join-token list`."
            )
        if found.revoked_at is None:
            revoked = replace(found, revoked_at=self._now)
            event = self._event(actor.user, f"join token {token_id} revoked", f"join token {token_id}")
            await self._engine.alone(lambda: self._store.save_token(revoked, event))

    # Machines

    async def join(self, request: JoinRequest) -> Admission:
        """Let a machine in.

        Raises UNAUTHENTICATED (no good token), FORBIDDEN (not one that makes heads), UNSUPPORTED (versions; a head for
        a pool that cannot have another), NAME_TAKEN, INVALID_NAME, INVALID_REQUEST. The token is looked at first: who
        has none learns nothing.
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
        member = Member(request.node, _digest(secret), key, request.address, self._now, token.id)
        how = f"joined{' as a head' if head else ''} from {request.address}"
        event = self._event(token.created_by, how, f"node {request.node}")
        admitted = False

        async def admit() -> None:
            nonlocal admitted
            admitted = await self._store.admit(token.secret_sha256, member, event, head)

        await self._engine.alone(admit)
        if not admitted:
            raise _no_good("has just been used up")
        heads = await self.heads.refresh()
        return Admission(member, secret, papers, authority.address, self._info.pool_id, heads, charge)

    def _charge(self, authority: Authority, token: JoinToken) -> Charge:
        if not token.for_head:
            raise GpupoolError(
                ErrorCode.FORBIDDEN,
                "This join token makes nodes, not heads.",
                "An administrator makes one for a head with 'gpupool join-token create --head'.",
            )
        return Charge(authority.secret_key(), self.heads.need_room())

    def _head_of(self, request: JoinRequest, authority: Authority) -> Head | None:
        if request.head is None:
            return None
        certificate = authority.checked(request.head.certificate)
        return self.heads.made_of(request.head, request.node, request.address, certificate)

    async def enrol(self, head: Head, certificate_request: str) -> str:
        """Make this machine, the first head, a member like those that joined; its secret, so that it can leave."""
        secret = secrets.token_urlsafe(32)
        key = self._need_authority().key_of(certificate_request)
        member = Member(head.name, _digest(secret), key, head.gcs_host, self._now, "")
        event = self._event(head.name, "is a member as a head", f"node {head.name}")
        await self._engine.alone(lambda: self._store.save_member(member, event))
        return secret

    async def standing(self, node: str, secret: str) -> Standing:
        """How the pool sees a machine that asks for itself. Raises UNAUTHENTICATED."""
        await self._member(node, secret)
        heads = await self.heads.refresh()
        try:
            found = await self._nodes.node(node)
        except GpupoolError:
            return Standing(None, heads=heads)
        held = len(await self._nodes.occupants(node))
        return Standing(found.state, tuple(gpu.model for gpu in found.report.gpus), held, heads)

    async def leave(self, node: str, secret: str, *, force: bool) -> Standing:
        """Prepare a machine's leaving: nothing new is placed there, and its training is sent away.

        Raises UNAUTHENTICATED; WRONG_STATE for the machine that leads, and while work runs there, unless ``force``:
        then the machine ends it.
        """
        standing = await self.standing(node, secret)
        if self.heads.leads(node):
            raise GpupoolError(
                ErrorCode.WRONG_STATE,
                f"{node} leads the pool.",
                "Stop it with 'gpupool down', so that another head leads, start it again with 'gpupool up', and leave."
                if len(self.heads.known) > 1
                else "It is the only head: make another first, with 'gpupool join-token create --head'.",
            )
        if standing.state is None:
            return standing
        await self._nodes.cordon(_itself(node), node, "it leaves the pool", drain=True)
        if force:
            await self._nodes.end_work(node, f"{node} left the pool")
            return await self.standing(node, secret)
        standing = await self.standing(node, secret)
        if standing.held:
            raise GpupoolError(
                ErrorCode.WRONG_STATE,
                f"{standing.held} programs still run on {node}, which takes nothing new from now on.",
                "Wait and leave again, or use --force: they are ended. 'gpupool uncordon' takes it back.",
            )
        return standing

    async def gone(self, node: str, secret: str) -> Standing:
        """Forget a machine that has stopped. Raises UNAUTHENTICATED; WRONG_STATE while it answers or holds work."""
        standing = await self.standing(node, secret)
        if standing.state is not None:
            await self._nodes.remove(_itself(node), node)
        event = self._event(node, "left the pool", f"node {node}")
        await self._engine.alone(lambda: self._store.drop_member(node, event))
        await self.heads.refresh()
        return standing

    async def _member(self, node: str, secret: str) -> Member:
        found = next((member for member in await self._store.members() if member.node == node), None)
        if found is None or not hmac.compare_digest(found.secret_sha256, _digest(secret)):
            raise GpupoolError(
                ErrorCode.UNAUTHENTICATED, "This machine is not known here.", "It has left or been removed: join again."
            )
        return found

    async def _good_token(self, secret: str) -> JoinToken:
        digest = _digest(secret)
        found = next((token for token in await self._store.tokens() if token.secret_sha256 == digest), None)
        if found is None:
            raise _no_good("is not known here")
        if found.revoked_at is not None:
            raise _no_good("has been revoked")
        if not found.good(self._now):
            raise _no_good("has expired" if found.uses_left else "is used up")
        return found

    async def _need_free(self, node: str, key: str) -> None:
        member = next((member for member in await self._store.members() if member.node == node), None)
        known = {found.name for found in await self._nodes.nodes()}
        if node in known and (member is None or member.key_sha256 != key):
            raise GpupoolError(
                ErrorCode.NAME_TAKEN,
                f"The pool has a node {node} already.",
                "Give this machine another name with --name, or have an administrator run "
                f"'gpupool node remove {node}' if it is the same machine.",
            )

    def _need_authority(self) -> Authority:
        if self._authority is None:
            raise GpupoolError(
                ErrorCode.UNSUPPORTED,
                "This pool is one machine.",
                "Make it a cluster: 'gpupool down', then 'gpupool up --cluster'. Jobs run on meanwhile.",
            )
        return self._authority

    @property
    def _now(self) -> float:
        return self._engine.ports.clock.now()

    def _event(self, by: str, what: str, target: str) -> Event:
        return Event(self._now, by, Reason.CHANGED, what, target=target)


def check_versions(head: Versions, node: Versions) -> None:
    """Raise UNSUPPORTED unless a machine with these versions can take part; gpupool's own may differ in the patch."""
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
            "Install the same versions as on the head: Ray only speaks to the same Ray and the same Python.",
        )


def _itself(node: str) -> Actor:
    """A machine may do to itself what an administrator may."""
    return Actor(f"node {node}", Role.ADMIN, "its own secret")


def _check_node(name: str) -> None:
    if not _NODE_NAME.fullmatch(name):
        raise GpupoolError(
            ErrorCode.INVALID_NAME, f"'{name[:80]}' is not a name for a node.", "Use letters, digits, '.', '_', '-'."
        )


def _no_good(how: str) -> GpupoolError:
    return GpupoolError(
        ErrorCode.UNAUTHENTICATED,
        f"The join token {how}.",
        "Make another on the head with 'gpupool join-token create'.",
    )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
