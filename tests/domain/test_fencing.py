"""The rules that keep two attempts of one replica apart, one at a time; test_fencing_model has all of them."""

from __future__ import annotations

from gpupool.domain.protocol.fencing import (
    PROOF_LIFETIME_S,
    HeartbeatCounter,
    LeadProof,
    SoleLeadership,
    certain_after_s,
    is_deposed,
)
from gpupool.domain.work.program.supervision import FENCE_GRACE_S


def test_proof_of_leadership_counts_from_the_request() -> None:
    proof = LeadProof()
    assert not proof.holds(0.0)
    proof.answered()
    assert not proof.holds(0.0), "nothing was asked"
    proof.ask(100.0)
    assert not proof.holds(100.0), "nothing was answered"
    proof.answered()  # however late that is read
    assert proof.holds(100.0 + PROOF_LIFETIME_S)
    assert not proof.holds(100.1 + PROOF_LIFETIME_S)
    proof.ask(200.0)
    assert not proof.holds(200.0)
    proof.answered()
    assert proof.holds(200.0)
    proof.lost()
    assert not proof.holds(200.0)
    proof.answered()
    assert not proof.holds(200.0), "the question was asked on another session"


def test_only_a_proven_leader_confirms_contact() -> None:
    pulse = HeartbeatCounter()
    assert pulse.ping(leads=True) == (1, 0)
    assert pulse.pong(1)
    assert pulse.ping(leads=False) == (2, 0)
    assert not pulse.pong(2)
    assert pulse.ping(leads=True) == (3, 2)


def test_only_a_lower_term_is_deposed() -> None:
    assert [is_deposed(term, 5) for term in (None, 4, 5, 6)] == [False, True, False, False]
    assert SoleLeadership().held()
    assert not is_deposed(SoleLeadership().term, 5)


def test_node_ends_work_before_it_is_given_up() -> None:
    """With a clock that is slow by a hundredth, a leader that is heard on, and another whose clock is as much fast."""
    for fence_s in (20.0, 300.0, 86_400.0):
        ends_at = PROOF_LIFETIME_S / 0.99 + (fence_s + FENCE_GRACE_S) / 0.99
        assert certain_after_s(fence_s) / 1.01 > ends_at + 5.0
