"""Slots for connections: limits for each user and address, deadlines, and a reserve for administrators.

Three kinds of connections have separate slots: strangers (an address on the network that has not shown a valid
credential yet), users, and privileged clients (root, the pool's owner, administrators). When a group reaches its limit,
its connection that has waited longest for its client is closed to make room. When a kind reaches its limit, the groups
with the most connections are tried first. A connection whose request is being answered is never closed. The clock and
the functions that close sockets are passed in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

MIB = 1024 * 1024


class ClientKind(Enum):
    """The kind of client, which decides the slots that a connection uses."""

    STRANGER = "stranger"
    USER = "user"
    PRIVILEGED = "privileged"


@dataclass(frozen=True, slots=True)
class ConnectionShare:
    """The slots of one kind: in total, and for each group (a user or an address)."""

    total: int
    each: int
    body_bytes: int = 256 * MIB  # of request bodies in memory, in total
    body_bytes_each: int = 64 * MIB


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The slots of one listening socket."""

    strangers: ConnectionShare
    users: ConnectionShare
    privileged: ConnectionShare

    @property
    def total(self) -> int:
        """Return the number of slots of all kinds together."""
        return self.strangers.total + self.users.total + self.privileged.total

    def share(self, kind: ClientKind) -> ConnectionShare:
        """Return the slots of a kind."""
        return {
            ClientKind.STRANGER: self.strangers,
            ClientKind.USER: self.users,
            ClientKind.PRIVILEGED: self.privileged,
        }[kind]


NONE = ConnectionShare(0, 0)
UNIX_LIMITS = ConnectionLimits(NONE, ConnectionShare(4096, 1024), ConnectionShare(1024, 1024))
LOOPBACK_LIMITS = ConnectionLimits(NONE, ConnectionShare(512, 128), ConnectionShare(128, 128))
NETWORK_LIMITS = ConnectionLimits(
    ConnectionShare(512, 128, 64 * MIB, 16 * MIB), ConnectionShare(1024, 256), ConnectionShare(128, 64)
)


@dataclass(frozen=True, slots=True)
class ConnectionPeer:
    """The client of a new connection. ``shared``: it is a trusted proxy, which connects for many clients."""

    name: str
    kind: ClientKind = ClientKind.STRANGER
    shared: bool = False


@dataclass(eq=False, slots=True)
class Slot:
    """One connection. ``close`` ends it at once; ``paused`` returns True while the pool does not read from it."""

    slots: Slots
    peer: ConnectionPeer
    close: Callable[[], None]
    group: str
    kind: ClientKind
    deadline: float = math.inf
    waits_for_client: bool = True
    paused: Callable[[], bool] = field(default=lambda: False)
    body_bytes: int = 0
    released: bool = False

    def wait(self, timeout_s: float) -> None:
        """Start a deadline for the client; until it sends, its connection may be closed to make room."""
        self.waits_for_client = True
        self.deadline = self.slots.clock() + timeout_s
        self.slots.renew(self)

    def extend(self, more_s: float) -> None:
        """Extend the deadline, because the client has sent data."""
        self.deadline += more_s

    def work(self) -> None:
        """Remove the deadline, because the pool has to answer now."""
        self.waits_for_client = False
        self.deadline = math.inf

    def identify(self, user: str, *, privileged: bool) -> bool:
        """Count the connection for the user of its credential; return False if the user has no slot left."""
        return self.slots.move(self, f"user {user}", ClientKind.PRIVILEGED if privileged else ClientKind.USER)

    def hold(self, size: int) -> bool:
        """Count bytes of a request body in memory; above the limit of the group or kind, return False."""
        return self.slots.hold(self, size)

    def drop_body(self) -> None:
        """Subtract the bytes of the request's body, which is no longer in memory."""
        self.slots.drop_body(self)

    def release(self) -> None:
        """Release the slot of a connection that has ended."""
        self.slots.remove(self)


class Slots:
    """The connections of one listening socket."""

    def __init__(
        self, limits: ConnectionLimits, clock: Callable[[], float], refused: Callable[[str], None] = lambda _group: None
    ) -> None:
        """Create the slots; ``refused`` gets the group of each connection that is closed to make room for another."""
        self.note_refused = refused
        self.limits = limits
        self.clock = clock
        self._groups: dict[ClientKind, dict[str, dict[Slot, None]]] = {
            kind: {} for kind in ClientKind
        }  # longest waiting first
        self._counts: Counter[ClientKind] = Counter()
        self._bodies: Counter[ClientKind | tuple[ClientKind, str]] = Counter()

    def __len__(self) -> int:
        return self._counts.total()

    def count(self, kind: ClientKind) -> int:
        """Return the number of connections of a kind."""
        return self._counts[kind]

    def admit(self, peer: ConnectionPeer, close: Callable[[], None], timeout_s: float) -> Slot | None:
        """Return a slot for a new connection, which must send a request in ``timeout_s``; None if none is free."""
        if not self._make_room(peer.name, peer.kind, shared=peer.shared):
            return None
        slot = Slot(self, peer, close, peer.name, peer.kind)
        self._add(slot)
        slot.wait(timeout_s)
        return slot

    def move(self, slot: Slot, group: str, kind: ClientKind) -> bool:
        """Move a connection to another group; return False if that has no free slot."""
        if slot.released or (slot.group, slot.kind) == (group, kind):
            return True
        if not self._make_room(group, kind):
            return False
        held = slot.body_bytes
        self.remove(slot)
        slot.released, slot.group, slot.kind = False, group, kind
        self._add(slot)
        self.hold(slot, held)
        return True

    def renew(self, slot: Slot) -> None:
        """Move a slot to the end of its group, because it starts to wait now."""
        if not slot.released:
            group = self._groups[slot.kind][slot.group]
            del group[slot]
            group[slot] = None

    def remove(self, slot: Slot) -> None:
        """Remove a connection; its slot is free again."""
        if slot.released:
            return
        self.drop_body(slot)
        slot.released = True
        group = self._groups[slot.kind][slot.group]
        del group[slot]
        self._counts[slot.kind] -= 1
        if not group:
            del self._groups[slot.kind][slot.group]

    def hold(self, slot: Slot, size: int) -> bool:
        """Do the work of ``Slot.hold``."""
        share, key = self.limits.share(slot.kind), (slot.kind, slot.group)
        if self._bodies[slot.kind] + size > share.body_bytes or self._bodies[key] + size > share.body_bytes_each:
            return False
        slot.body_bytes += size
        self._bodies[slot.kind] += size
        self._bodies[key] += size
        return True

    def drop_body(self, slot: Slot) -> None:
        """Do the work of ``Slot.drop_body``."""
        if slot.body_bytes:
            key = (slot.kind, slot.group)
            self._bodies[slot.kind] -= slot.body_bytes
            self._bodies[key] -= slot.body_bytes
            slot.body_bytes = 0
            if not self._bodies[key]:
                del self._bodies[key]

    def close_overdue(self, extra_s: float) -> int:
        """Close connections whose deadline has passed; return the number of such connections.

        A connection that the pool does not read from gets ``extra_s`` more instead.
        """
        now = self.clock()
        late = [s for groups in self._groups.values() for group in groups.values() for s in group if s.deadline <= now]
        for slot in late:
            if slot.paused():
                slot.deadline = now + extra_s
            else:
                self._close(slot)
        return len(late)

    def _add(self, slot: Slot) -> None:
        self._groups[slot.kind].setdefault(slot.group, {})[slot] = None
        self._counts[slot.kind] += 1

    def _make_room(self, group: str, kind: ClientKind, *, shared: bool = False) -> bool:
        share, own = self.limits.share(kind), self._groups[kind].get(group, {})
        if not shared and len(own) >= share.each:
            return self._close_longest_waiting(own)
        if self._counts[kind] < share.total:
            return True
        larger = [other for other in self._groups[kind].values() if len(other) > len(own)]
        candidates = [*sorted(larger, key=len, reverse=True), own]
        return any(self._close_longest_waiting(candidate) for candidate in candidates)

    def _close_longest_waiting(self, group: dict[Slot, None]) -> bool:
        found = next((slot for slot in group if slot.waits_for_client), None)
        if found is not None:
            self.note_refused(found.group)
            self._close(found)
        return found is not None

    def _close(self, slot: Slot) -> None:
        self.remove(slot)
        slot.close()


def scaled(limits: ConnectionLimits, most: int) -> ConnectionLimits:
    """Return the limits for a process that can keep at most ``most`` connections open."""
    if limits.total <= most:
        return limits
    factor = most / limits.total

    def fewer(share: ConnectionShare) -> ConnectionShare:
        each = min(share.each, max(4, int(share.each * factor)))
        return ConnectionShare(
            min(share.total, max(4, int(share.total * factor))), each, share.body_bytes, share.body_bytes_each
        )

    return ConnectionLimits(fewer(limits.strangers), fewer(limits.users), fewer(limits.privileged))
