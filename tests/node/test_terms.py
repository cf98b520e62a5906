"""A node follows the newest leader it has seen: commands of older leaders are refused and are no contact."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from node_harness import Caller, Node, RefusedError, spec

from gpupool.domain.errors import GpupoolError
from gpupool.node.agent.attempt import Terms
from gpupool.node.host.heartbeat import Contact

LIVES = "while :; do sleep 0.1; done"


def leader(node: Node, term: int | None) -> Caller:
    """Connect as the leader of a term."""
    caller = Caller(node.run / "agent.sock")
    caller.term = term
    return caller


def refused(ask: Callable[[], object]) -> str:
    with pytest.raises(RefusedError) as caught:
        ask()
    return caught.value.code


def test_replaced_leader_may_only_read(own_node: Node) -> None:
    old, new = leader(own_node, 5), leader(own_node, 6)
    runs = spec(LIVES)
    old.ask("start", spec=runs.to_dict())
    own_node.running(runs.key)
    new.ask("list")
    for method, params in {
        "start": {"spec": spec(LIVES).to_dict()},
        "stop": {"key": runs.key, "grace_s": 0},
        "notify": {"key": runs.key},
        "signal": {"key": runs.key, "signum": signal.SIGKILL},
        "forget": {"key": runs.key},
        "reserve_ports": {"key": runs.key, "address": "127.0.0.1", "count": 1},
        "tree_make": {},
        "blob_put": {},
    }.items():
        assert refused(lambda m=method, p=params: old.ask(m, **p)) == "NOT_LEADING", method  # type: ignore[misc]
    assert [status["key"] for status in old.ask("list")] == [runs.key]
    assert own_node.running(runs.key).pid
    new.ask("stop", key=runs.key, grace_s=0)
    own_node.ended(runs.key)


def test_pings_of_replaced_leader_are_no_contact(own_node: Node) -> None:
    old, new, heard = leader(own_node, 5), leader(own_node, 6), Contact(own_node.run / "heard")
    old.ask("ping", number=1, answered=0)
    old.ask("ping", number=2, answered=1)
    contact = heard.last()
    assert contact is not None
    new.ask("ping", number=1, answered=0)
    assert refused(lambda: old.ask("ping", number=3, answered=2)) == "NOT_LEADING"
    assert heard.last() == contact
    new.ask("ping", number=2, answered=1)
    assert (heard.last() or 0) > contact


def test_ping_without_confirmed_answer_is_no_contact(own_node: Node) -> None:
    """A leader that cannot prove its leadership continues to ping, and counts again as soon as it can."""
    caller, heard = leader(own_node, 5), Contact(own_node.run / "heard")
    for number in range(1, 200):
        caller.ask("ping", number=number, answered=0)
    assert heard.last() is None
    caller.ask("ping", number=200, answered=199)
    caller.ask("ping", number=201, answered=200)
    assert heard.last() is not None


def test_newest_term_survives_the_agent(own_node: Node) -> None:
    leader(own_node, 6).ask("list")
    own_node.down(signal.SIGKILL)
    own_node.up()
    wanted = spec(LIVES)
    assert refused(lambda: leader(own_node, 5).ask("start", spec=wanted.to_dict())) == "NOT_LEADING"
    assert own_node.ask("list") == []


def test_control_plane_without_terms_is_accepted(own_node: Node) -> None:
    """Such a control plane is an older release, or has its own database."""
    leader(own_node, 6).ask("list")
    without = leader(own_node, None)
    without.ask("ping", number=1, answered=0)
    without.ask("ping", number=2, answered=1)
    assert Contact(own_node.run / "heard").last() is not None
    wanted = spec(LIVES)
    without.ask("start", spec=wanted.to_dict())
    own_node.running(wanted.key)


def test_term_must_be_a_number(own_node: Node) -> None:
    caller = Caller(own_node.run / "agent.sock")
    caller.term = "newest"  # type: ignore[assignment]
    assert refused(lambda: caller.ask("list")) == "INVALID_REQUEST"


def test_full_disk_does_not_end_contact(tmp_path: Path) -> None:
    terms = Terms(tmp_path / "gone" / "term.json")
    terms.check("ping", 6)
    with pytest.raises(GpupoolError):
        terms.check("ping", 5)


def test_new_connection_ends_earlier_connection_of_control_plane(own_node: Node) -> None:
    """Late messages of the old connection must not be executed after both sides have compared their state."""
    for term in (None, 5):
        before, after = leader(own_node, term), leader(own_node, term)
        before.ask("watch")
        after.ask("watch")
        with pytest.raises(OSError):  # noqa: PT011 - hung up on in the middle of a request, or before it
            before.ask("start", spec=spec(LIVES).to_dict())
        assert after.ask("list") == []


def test_replaced_leader_does_not_end_connection_of_current_leader(own_node: Node) -> None:
    new, old, without = leader(own_node, 6), leader(own_node, 5), leader(own_node, None)
    new.ask("watch")
    old.ask("watch")
    without.ask("watch")
    assert new.ask("list") == []
