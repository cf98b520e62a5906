from __future__ import annotations

import pytest

from gpupool.node.reconcile import GRACE, STOP_AFTER, WARN_AFTER, Case, GpuLook, Offence, Step, correction, judge
from gpupool.node.sharing.pages import Slot

MIB = 1 << 20
LIMIT = 1000 * MIB
NS = 5


def slot(pid: int, ledger: int, *, context: int = 100, moved: int = 0, host: int | None = None, ns: int = NS) -> Slot:
    return Slot(pid, pid * 10, ns, pid if host is None else host, ledger * MIB, context * MIB, (moved, moved))


def look(
    used: dict[int, int], *slots: Slot, after: tuple[Slot, ...] | None = None, limit: int | None = LIMIT
) -> GpuLook:
    return GpuLook(limit, slots, slots if after is None else after, {p: b * MIB for p, b in used.items()}, NS)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (look({}), 0),
        (look({1: 300}, slot(1, 300)), 0),
        (look({1: 350}, slot(1, 300)), 50),  # modules and workspaces
        (look({1: 280}, slot(1, 300)), -20),  # the context was smaller than thought
        (look({1: 10}, slot(1, 300)), -100),  # managed memory elsewhere stays charged
        (look({1: 350, 2: 100}, slot(1, 300), slot(2, 110)), 40),
        (look({1: 300, 9: 70}, slot(1, 300)), 70),  # who goes round the library uses up the slice all the same
        (look({1: 300}, slot(1, 300), slot(2, 500)), 0),  # a process that the driver does not know of yet
        (look({1: 350}, slot(1, 300), after=(slot(1, 310, moved=1),)), None),
    ],
)
def test_the_driver_corrects_the_ledgers(what: GpuLook, expected: int | None) -> None:
    found = correction(what)
    assert found == (None if expected is None else expected * MIB)


@pytest.mark.parametrize(
    ("what", "offence", "pids"),
    [
        (look({1: 1000}, slot(1, 1000)), None, set()),
        (look({1: 1084}, slot(1, 1000)), None, set()),  # two percent and 64 MiB are allowed for
        (look({1: 1085}, slot(1, 1000)), Offence.TOO_MUCH, {1}),
        (look({1: 900, 2: 900}, slot(1, 900)), Offence.TOO_MUCH, {2}),  # the one without a slot first
        (look({1: 900, 2: 10}, slot(1, 900)), Offence.UNKNOWN, {2}),
        (look({2: 10}, slot(1, 10, host=0, ns=9)), None, set()),  # that slot may be its own: nobody can tell yet
        (look({2: 10}, slot(1, 10, host=2, ns=9)), None, set()),
        (look({1: 10}, limit=None), Offence.NOT_ITS_GPU, {1}),
    ],
)
def test_who_takes_more_than_is_theirs(what: GpuLook, offence: Offence | None, pids: set[int]) -> None:
    found = judge(what)
    assert (None if found is None else found.offence) == offence
    assert (set() if found is None else found.pids) == pids


def test_three_looks_warn_five_end_the_newest_and_a_grace_later_it_is_killed() -> None:
    finding, case = judge(look({1: 900, 2: 900}, slot(1, 900), slot(2, 900))), Case()
    steps = [case.next(finding, [2, 1], only_warn=False) for _ in range(STOP_AFTER + GRACE)]
    assert steps[WARN_AFTER - 1] == (Step.WARN, 0)
    assert steps[STOP_AFTER - 1] == (Step.TERM, 2)
    assert steps[-1] == (Step.KILL, 2)
    assert len([step for step in steps if step is not None]) == 3
    alone = judge(look({1: 1900}, slot(1, 900)))
    assert case.next(alone, [1], only_warn=False) == (Step.TERM, 1)  # it was not enough


def test_a_moment_beyond_the_limit_is_nothing() -> None:
    finding, case = judge(look({1: 2000}, slot(1, 900))), Case()
    for _ in range(10):
        assert [case.next(f, [1], only_warn=False) for f in (finding, finding, None)] == [None, None, None]


def test_a_node_may_only_warn() -> None:
    finding, case = judge(look({1: 2000}, slot(1, 900))), Case()
    steps = {case.next(finding, [1], only_warn=True) for _ in range(50)}
    assert steps == {None, (Step.WARN, 0)}
