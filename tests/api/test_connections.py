"""Slots for connections: which connection is closed for another, deadlines, and bodies in memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpupool.api.server.connections import (
    NONE,
    UNIX_LIMITS,
    ClientKind,
    ConnectionLimits,
    ConnectionPeer,
    ConnectionShare,
    Slot,
    Slots,
    scaled,
)

LIMITS = ConnectionLimits(ConnectionShare(8, 4), ConnectionShare(6, 3), ConnectionShare(2, 2))


class Door:
    """Slots with a clock that stands still, and what was closed."""

    def __init__(self, limits: ConnectionLimits = LIMITS) -> None:
        self.now = 0.0
        self.slots = Slots(limits, lambda: self.now)
        self.closed: list[str] = []

    def admit(
        self, name: str, peer: str = "10.0.0.1", kind: ClientKind = ClientKind.STRANGER, *, shared: bool = False
    ) -> Slot:
        slot = self.try_to_admit(name, peer, kind, shared=shared)
        assert slot is not None
        return slot

    def try_to_admit(
        self, name: str, peer: str = "10.0.0.1", kind: ClientKind = ClientKind.STRANGER, *, shared: bool = False
    ) -> Slot | None:
        return self.slots.admit(ConnectionPeer(peer, kind, shared), lambda: self.closed.append(name), 10.0)


def test_longest_idle_connection_of_the_group_is_closed() -> None:
    door = Door()
    first, *_ = [door.admit(f"a{number}") for number in range(4)]
    door.admit("other", "10.0.0.2")
    first.wait(10.0)  # it has sent something: now a1 waits longest
    door.admit("a4")
    assert door.closed == ["a1"]


def test_busy_connection_is_never_closed_for_another() -> None:
    door = Door()
    for number in range(4):
        door.admit(f"a{number}").work()
    assert door.try_to_admit("a4") is None
    assert door.closed == []
    door.admit("b", "10.0.0.2")


def test_new_connection_displaces_client_with_most_connections() -> None:
    door = Door()
    for address, count in (("10.0.0.1", 4), ("10.0.0.2", 3), ("10.0.0.3", 1)):
        for number in range(count):
            door.admit(f"{address} {number}", address)
    door.admit("new", "10.0.0.4")
    assert door.closed == ["10.0.0.1 0"]


def test_connections_of_trusted_proxy_are_limited_only_in_total() -> None:
    door = Door()
    for number in range(8):
        door.admit(f"p{number}", shared=True)
    assert door.closed == []
    door.admit("new", "10.0.0.9")
    assert door.closed == ["p0"]


def test_verified_connections_and_administrators_have_separate_slots() -> None:
    door = Door()
    for number in range(3):
        assert door.admit(f"ada{number}").identify("ada", privileged=False)
    for slot in list(door.slots._groups[ClientKind.USER]["user ada"]):
        slot.work()
    late = door.admit("ada3")
    late.work()
    assert not late.identify("ada", privileged=False)
    assert late.identify("root", privileged=True)
    assert [door.slots.count(kind) for kind in ClientKind] == [0, 3, 1]
    for number in range(4):
        door.admit(f"stranger{number}")
    assert door.closed == []


def test_root_and_owner_have_reserved_slots() -> None:
    door = Door(ConnectionLimits(NONE, ConnectionShare(2, 2), ConnectionShare(1, 1)))
    for number in range(2):
        door.admit(f"m{number}", "uid 1000", ClientKind.USER).work()
    assert door.try_to_admit("m2", "uid 1000", ClientKind.USER) is None
    door.admit("root", "uid 0", ClientKind.PRIVILEGED)


def test_connection_deadlines_depend_on_state() -> None:
    door = Door()
    silent, slow, served, unread = (door.admit(name) for name in ("silent", "slow", "served", "unread"))
    slow.extend(5.0)
    served.work()
    unread.paused = lambda: True
    door.now = 10.0
    door.slots.close_overdue(extra_s=1.0)
    assert door.closed == ["silent"]
    unread.paused = lambda: False
    door.now = 11.0
    door.slots.close_overdue(extra_s=1.0)
    assert door.closed == ["silent", "unread"]
    door.now = 15.0
    door.slots.close_overdue(extra_s=1.0)
    assert door.closed == ["silent", "unread", "slow"]
    assert len(door.slots) == 1
    silent.release()
    served.release()
    assert len(door.slots) == 0


def test_body_memory_is_limited_per_client_and_in_total() -> None:
    share = ConnectionShare(9, 9, body_bytes=100, body_bytes_each=60)
    door = Door(ConnectionLimits(share, share, share))
    first, again, other = door.admit("a"), door.admit("b"), door.admit("c", "10.0.0.2")
    assert first.hold(40)
    assert not again.hold(30)
    assert again.hold(20)
    assert not other.hold(50)
    assert other.hold(40)
    assert first.identify("ada", privileged=False)
    assert other.hold(20)
    for slot in (first, again, other):
        slot.release()
    assert not +door.slots._bodies


def test_few_descriptors_give_few_slots_to_each_group() -> None:
    assert scaled(UNIX_LIMITS, 100_000) is UNIX_LIMITS
    few = scaled(UNIX_LIMITS, 100)
    assert few.total <= 100
    assert few.users.each >= 4
    assert few.privileged.total >= 4


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=60))
def test_limits_and_counts_hold_under_random_events(steps: list[tuple[int, int]]) -> None:
    door = Door()
    slots: list[Slot] = []
    for act, number in steps:
        if act == 0 or not slots:
            made = door.try_to_admit("x", f"10.0.0.{number}", list(ClientKind)[number % 3])
            if made is not None:
                slots.append(made)
            continue
        slot = slots[number % len(slots)]
        if slot.released:
            continue
        if act == 1:
            slot.work()
        elif act == 2:
            slot.wait(1.0)
        elif act == 3:
            slot.release()
        else:
            slot.identify(f"u{number}", privileged=number == 0)
    for kind in ClientKind:
        groups = door.slots._groups[kind]
        assert door.slots.count(kind) == sum(map(len, groups.values())) <= LIMITS.share(kind).total
        assert all(0 < len(group) <= LIMITS.share(kind).each for group in groups.values())
    assert len(door.slots) == sum(not slot.released for slot in slots)
