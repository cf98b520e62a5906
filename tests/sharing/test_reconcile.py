from __future__ import annotations

from dataclasses import replace

import pytest

from gpupool.node.sharing.slices.memory_audit import (
    KILL_AFTER_SAMPLES,
    STOP_AFTER_SAMPLES,
    WARN_AFTER_SAMPLES,
    MemorySample,
    Offence,
    OffenceAction,
    OffenceCase,
    context_sizes,
    correction,
    judge,
)
from gpupool.node.sharing.slices.pages import LedgerSlot

MIB = 1 << 20
LIMIT = 1000 * MIB
NS = 5


def slot(
    pid: int, ledger: int, *, context: int = 100, moved: int = 0, host: int | None = None, ns: int = NS
) -> LedgerSlot:
    pids = (pid, pid * 10, ns, pid if host is None else host)
    return LedgerSlot(*pids, ledger * MIB, context * MIB, measured=False, state=(moved, moved))


def look(
    used: dict[int, int],
    *slots: LedgerSlot,
    after: tuple[LedgerSlot, ...] | None = None,
    limit: int | None = LIMIT,
    allowance: int = 0,
) -> MemorySample:
    after = slots if after is None else after
    return MemorySample(limit, slots, after, {p: b * MIB for p, b in used.items()}, NS, allowance * MIB)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (look({}), 0),
        (look({1: 300}, slot(1, 300)), 0),
        (look({1: 350}, slot(1, 300)), 50),  # modules and workspaces
        (look({1: 280}, slot(1, 300)), -20),  # the context was smaller than thought
        (look({1: 10}, slot(1, 300)), -100),  # managed memory on the host stays charged
        (look({1: 350, 2: 100}, slot(1, 300), slot(2, 110)), 40),
        (look({1: 300, 9: 70}, slot(1, 300)), 70),  # who goes round the library uses up the slice all the same
        (look({1: 300}, slot(1, 300), slot(2, 500)), 0),  # a process that the driver does not know of yet
        (look({1: 350}, slot(1, 300), after=(slot(1, 310, moved=1),)), None),
    ],
)
def test_driver_measurement_corrects_ledgers(what: MemorySample, expected: int | None) -> None:
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
        # What the driver took by itself: 900 were asked for, the rest is context, modules and heaps.
        (look({1: 1400}, slot(1, 1000), allowance=500), Offence.DRIVER, {1}),
        (look({1: 1401}, slot(1, 1000), allowance=500), Offence.TOO_MUCH, {1}),
        (look({1: 700, 2: 700}, slot(1, 500), slot(2, 500), allowance=300), Offence.DRIVER, {1, 2}),
        (look({1: 200, 2: 1000}, slot(1, 500), slot(2, 500), allowance=300), Offence.TOO_MUCH, {2}),
        (look({1: 1300, 2: 10}, slot(1, 1000), allowance=500), Offence.TOO_MUCH, {2}),
        # A tenant may write what it likes into its slots; no more than the slice is believed.
        (look({1: 3000}, slot(1, 9000), allowance=500), Offence.TOO_MUCH, {1}),
        # Memory freed between the looks at the slots was still in use when the driver was asked.
        (look({1: 1400}, slot(1, 1000), after=(slot(1, 200, moved=1),), allowance=500), Offence.DRIVER, {1}),
        # In a container, before the arbiter has told whose the slot is.
        (look({7: 1400}, slot(1, 1000, host=0, ns=9), allowance=500), Offence.DRIVER, {7}),
        (look({7: 1401}, slot(1, 1000, host=0, ns=9), allowance=500), Offence.TOO_MUCH, {7}),
    ],
)
def test_processes_above_their_limit_are_found(what: MemorySample, offence: Offence | None, pids: set[int]) -> None:
    found = judge(what)
    assert (None if found is None else found.offence) == offence
    assert (set() if found is None else found.pids) == pids


def test_memory_taken_by_driver_ends_no_process() -> None:
    taken, unhooked = (judge(look({1: used}, slot(1, 1000), allowance=500)) for used in (1400, 2000))
    case = OffenceCase()
    steps = [case.next(taken, [1], only_warn=False) for _ in range(STOP_AFTER_SAMPLES + KILL_AFTER_SAMPLES)]
    assert [step for step in steps if step is not None] == [(OffenceAction.WARN, 0)]
    later = [case.next(unhooked, [1], only_warn=False) for _ in range(STOP_AFTER_SAMPLES)]
    assert later == [
        None,
        None,
        (OffenceAction.WARN, 0),
        None,
        (OffenceAction.TERM, 1),
    ]  # a warning of its own, and the time for it


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (look({1: 700}, replace(slot(1, 600, context=500), measured=True)), [500]),  # modules came later
        (look({1: 700}, slot(1, 300, context=100)), [500]),  # nothing was measured: all that was not asked for
        (look({1: 200}, slot(1, 300, context=100)), []),  # managed memory on the host: nothing is known
        (look({2: 700}, slot(1, 300)), []),
    ],
)
def test_context_sizes_follow_from_sample(what: MemorySample, expected: list[int]) -> None:
    assert context_sizes(what) == [size * MIB for size in expected]


def test_newest_process_is_warned_terminated_then_killed() -> None:
    finding, case = judge(look({1: 900, 2: 900}, slot(1, 900), slot(2, 900))), OffenceCase()
    steps = [case.next(finding, [2, 1], only_warn=False) for _ in range(STOP_AFTER_SAMPLES + KILL_AFTER_SAMPLES)]
    assert steps[WARN_AFTER_SAMPLES - 1] == (OffenceAction.WARN, 0)
    assert steps[STOP_AFTER_SAMPLES - 1] == (OffenceAction.TERM, 2)
    assert steps[-1] == (OffenceAction.KILL, 2)
    assert len([step for step in steps if step is not None]) == 3
    alone = judge(look({1: 1900}, slot(1, 900)))
    assert case.next(alone, [1], only_warn=False) == (OffenceAction.TERM, 1)  # it was not enough


def test_short_excess_has_no_effect() -> None:
    finding, case = judge(look({1: 2000}, slot(1, 900))), OffenceCase()
    for _ in range(10):
        assert [case.next(f, [1], only_warn=False) for f in (finding, finding, None)] == [None, None, None]


def test_node_can_be_set_to_only_warn() -> None:
    finding, case = judge(look({1: 2000}, slot(1, 900))), OffenceCase()
    steps = {case.next(finding, [1], only_warn=True) for _ in range(50)}
    assert steps == {None, (OffenceAction.WARN, 0)}
