"""A node without contact to a control plane ends programs that others may have taken over."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from node_harness import Node, RefusedError, eventually, spec

from gpupool.domain.work.program.supervision import ExitReason
from gpupool.node.host.heartbeat import Contact, Fence, Pings, boottime

LIVES = "while :; do sleep 0.1; done"


def pinging(node: Node) -> Callable[[], None]:
    """Return a control plane: each call is a ping that is answered."""
    numbers = itertools.count(1)

    def ping() -> None:
        number = next(numbers)
        node.ask("ping", number=number, answered=number - 1)

    return ping


def test_fenced_program_ends_without_contact_to_control_plane(own_node: Node) -> None:
    ping = pinging(own_node)
    ping()
    ping()
    fenced, free = spec(LIVES, fence_after_s=2.0, grace_s=0.5), spec(LIVES)
    for wanted in (fenced, free):
        own_node.start(wanted)
        own_node.running(wanted.key)
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        ping()
        time.sleep(0.2)
    assert own_node.running(fenced.key).pid
    assert own_node.process is not None
    own_node.process.send_signal(signal.SIGSTOP)  # a frozen agent cannot end it: the shepherd does
    eventually(lambda: not own_node.living(fenced.key), "the fence")
    own_node.process.send_signal(signal.SIGCONT)
    assert own_node.ended(fenced.key).reason is ExitReason.FENCED
    assert own_node.running(free.key).pid


def test_late_start_is_refused_until_there_is_contact(own_node: Node) -> None:
    wanted = spec(LIVES, fence_after_s=0.3)
    ping = pinging(own_node)
    ping()
    ping()
    time.sleep(0.4)
    with pytest.raises(RefusedError) as refused:
        own_node.start(wanted)
    assert refused.value.code == "NODE_UNREACHABLE"
    ping()
    ping()
    own_node.start(wanted)


def test_restarted_agent_counts_from_the_last_contact(own_node: Node) -> None:
    ping = pinging(own_node)
    ping()
    ping()
    wanted = spec(LIVES, fence_after_s=1.0, grace_s=0.5)
    own_node.start(wanted)
    own_node.running(wanted.key)
    own_node.down(signal.SIGKILL)
    eventually(lambda: not own_node.living(wanted.key), "the fence")
    own_node.up()
    assert own_node.ended(wanted.key).reason is ExitReason.FENCED


def test_only_confirmed_contact_counts(tmp_path: Path) -> None:
    contact = Contact(tmp_path / "heard")
    pings = Pings(contact, boottime)
    pings.take(1, 0)
    assert contact.last() is None, "nobody knows yet that the answer came"
    before = boottime()
    time.sleep(0.01)
    pings.take(2, 1)
    assert (contact.last() or 0) < before + 0.005, "what counts is when ping 1 came; it is kept in thousandths"
    kept = contact.last()
    for number in range(3, 200):  # they waited in a buffer: none confirms a later answer
        pings.take(number, 1)
    assert contact.last() == kept
    Pings(contact, boottime).take(7, 6)  # a new connection has a new count
    assert Contact(tmp_path / "heard").last() == kept


def test_fence_is_checked_at_its_deadline(tmp_path: Path) -> None:
    contact = Contact(tmp_path / "heard")
    assert not Fence(contact, None).expired(0.0)
    contact.confirm(boottime())
    fence = Fence(contact, 60.0)
    assert not fence.expired(100.0)
    assert fence.check_at == 105.0
    contact_long_ago = Fence(Contact(tmp_path / "never"), 1e-9)
    assert contact_long_ago.expired(0.0)
    assert not contact_long_ago.expired(1.0), "once"
