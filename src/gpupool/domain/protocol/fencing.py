"""Fencing rules that separate two attempts of one replica, without a clock, a socket or a database.

A node ends its work when it has been out of contact for too long. The control plane gives that work up only when the
node has certainly done so. Both count from the last contact, so contact must come from the leader.
docs/lost-nodes.md has the argument with worst-case delays; tests/domain/test_fencing_model.py checks it.
"""

from __future__ import annotations

from typing import Protocol

from gpupool.domain.work.program.supervision import FENCE_GRACE_S

PROOF_LIFETIME_S = 6.0  # how long a leader may rely on an answer of the database, counted from its question
FENCE_MARGIN_S = 9.0  # for a node to notice the end of the time, and to kill
MAX_CLOCK_RATIO = 1.01 / 0.99  # one clock may be 1 % slow while the other is 1 % fast

# Requests that change what happens on a node. Only the leader may send them.
END = "end"  # a user's stop: it causes no second attempt, so it needs only the newest term, not a proof of leadership
COMMANDS = frozenset(
    {
        END,
        "start",
        "attach_gpus",
        "suspend",
        "stop",
        "notify",
        "signal",
        "forget",
        "reserve_ports",
        "create_mig_instance",
        "remove_mig_instance",
        "blob_put",
        "tree_make",
        "home_task",
    }
)
PING = "ping"


class Leadership(Protocol):
    """The right of a control plane to command nodes."""

    @property
    def term(self) -> int | None:
        """Return the term of this leadership, which only grows; None if no other control plane can lead."""

    def held(self) -> bool:
        """Return whether it certainly leads now, or did so recently enough for the margins."""


class SoleLeadership:
    """The leadership of a control plane with its own database: no other one can lead."""

    term: int | None = None

    def held(self) -> bool:
        """Return True."""
        return True


class LeadProof:
    """The newest proof that a control plane leads: an answer on the session that holds the leader's lock.

    The session had the lock when the server answered, which was after the question. So no other control plane began to
    lead before the question. The time of the answer proves less: a process that was frozen may read it much later.
    """

    def __init__(self) -> None:
        self._asked_at: float | None = None
        self._proven_at: float | None = None

    def ask(self, now: float) -> None:
        """Record that the database is about to be asked. ``now`` must also count while the machine is suspended."""
        self._asked_at = now

    def answered(self) -> None:
        """Record that the last question was answered."""
        self._proven_at = self._asked_at

    def lost(self) -> None:
        """Record that the session has ended."""
        self._asked_at = self._proven_at = None

    def holds(self, now: float) -> bool:
        """Return whether the proof is young enough."""
        return self._proven_at is not None and now - self._proven_at <= PROOF_LIFETIME_S


class HeartbeatCounter:
    """The heartbeats of one connection, as the control plane counts them.

    A ping names the earlier ping that was answered; only this counts as contact on the node. A control plane that
    cannot prove its leadership continues to ping, to notice when the node falls silent, but names no answer.
    """

    def __init__(self) -> None:
        self._sent = 0
        self._answered = 0

    def ping(self, *, leads: bool) -> tuple[int, int]:
        """Return the number of the next ping, and of the answer that it names (0: none)."""
        self._sent += 1
        return self._sent, self._answered if leads else 0

    def pong(self, number: int) -> bool:
        """Record that a ping was answered; return whether it is the first."""
        first, self._answered = not self._answered, number
        return first


def is_deposed(term: int | None, seen: int) -> bool:
    """Return whether a request of ``term`` comes from a control plane that another one has replaced.

    A control plane of a release without terms, or with its own database, sends no term.
    """
    return term is not None and term < seen


def certain_after_s(fence_after_s: float) -> float:
    """Return how long a node must be silent until a fence has certainly ended its work.

    A new leader may take over while the node still hears the old one for ``PROOF_LIFETIME_S``.
    """
    return (fence_after_s + FENCE_GRACE_S + PROOF_LIFETIME_S) * MAX_CLOCK_RATIO + FENCE_MARGIN_S
