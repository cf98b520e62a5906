"""A node that hears no control plane ends by itself what others may have taken over."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from node_harness import Node, RefusedError, eventually, spec

from gpupool.domain.supervision import ExitReason
from gpupool.node.contact import Contact, Fence, Pings, boottime

LIVES = "while :; do sleep 0.1; done"


def pinging(node: Node) -> Callable[[], None]:
    """A control plane: each call is a ping that is answered."""
    numbers = itertools.count(1)

    def ping() -> None:
        number = next(numbers)
        node.ask("ping", number=number, answered=number - 1)

    return ping


def test_a_fenced_program_lives_while_a_control_plane_is_heard_and_no_longer(own_node: Node) -> None:
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
    own_node.process.send_signal(signal.SIGSTOP)  # a frozen agent cannot do it: the shepherd does
    eventually(lambda: not own_node.living(fenced.key), "the fence")
    own_node.process.send_signal(signal.SIGCONT)
    assert own_node.ended(fenced.key).reason is ExitReason.FENCED
    assert own_node.running(free.key).pid


def test_a_start_that_comes_too_late_is_refused_until_there_is_contact(own_node: Node) -> None:
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


def test_the_clock_goes_on_from_the_last_contact_when_the_agent_starts_again(own_node: Node) -> None:
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


def test_only_contact_that_both_sides_know_of_counts(tmp_path: Path) -> None:
    contact = Contact(tmp_path / "heard")
    pings = Pings(contact)
    pings.take(1, 0)
    assert contact.last() is None, "nobody knows yet that the answer came"
    before = boottime()
    time.sleep(0.01)
    pings.take(2, 1)
    assert (contact.last() or 0) < before + 0.005, "what counts is when ping 1 came; it is kept in thousandths"
    kept = contact.last()
    for number in range(3, 200):  # they waited in a buffer: none of them says that a later answer came
        pings.take(number, 1)
    assert contact.last() == kept
    Pings(contact).take(7, 6)  # another connection, another count
    assert Contact(tmp_path / "heard").last() == kept


def test_a_fence_is_looked_at_when_it_is_due(tmp_path: Path) -> None:
    contact = Contact(tmp_path / "heard")
    assert not Fence(contact, None).passed(0.0)
    contact.confirm(boottime())
    fence = Fence(contact, 60.0)
    assert not fence.passed(100.0)
    assert fence.look_at == 105.0
    contact_long_ago = Fence(Contact(tmp_path / "never"), 1e-9)
    assert contact_long_ago.passed(0.0)
    assert not contact_long_ago.passed(1.0), "once"
