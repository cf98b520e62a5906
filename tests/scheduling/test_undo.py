import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.scheduling.state.undo import UndoLog, grown

ops = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(-(2**40), 2**40)), max_size=40)


@given(ops, ops)
def test_rollback_restores_all_arrays(kept: list[tuple[int, int, int]], undone: list[tuple[int, int, int]]) -> None:
    columns = [np.arange(4), np.arange(12).reshape(4, 3), np.zeros((4, 2), np.int64)]
    log = UndoLog()
    for column, row, delta in kept:
        log.add(columns[column], row, delta)
    before = [column.copy() for column in columns]
    mark = log.checkpoint()
    for column, row, delta in undone:
        log.add(columns[column], row, delta)
    log.rollback(mark)
    assert all((a == b).all() and a.dtype == b.dtype for a, b in zip(before, columns, strict=True))
    assert len(log) == len(kept)


@given(ops, ops)
def test_several_additions_at_once_are_one_step(
    kept: list[tuple[int, int, int]], undone: list[tuple[int, int, int]]
) -> None:
    columns, each = [np.arange(12).reshape(4, 3), np.zeros(4, np.int64)], UndoLog()
    alone, at_once = ([column.copy() for column in columns] for _ in range(2))
    log = UndoLog()
    for some in (kept, undone):
        mark = log.checkpoint()
        rows, deltas = (np.array([step[at] for step in some], np.int64) for at in (1, 2))
        for column, other in zip(alone, at_once, strict=True):
            for _, row, delta in some:
                each.add(column, row, delta)
            log.add_each(other, rows, deltas if other.ndim == 1 else np.repeat(deltas[:, None], 3, axis=1))
        assert all((a == b).all() for a, b in zip(alone, at_once, strict=True))
    log.rollback(mark)
    each.rollback(2 * len(kept))
    assert len(log) == 2
    assert all((a == b).all() for a, b in zip(alone, at_once, strict=True))


def test_rollback_returns_restored_rows() -> None:
    told: list[int] = []
    log = UndoLog(told.append)
    log.touch(3)
    mark = log.checkpoint()
    log.touch(1)
    log.touch(2)
    log.rollback(mark)
    assert told == [2, 1]


def test_commit_cannot_be_undone() -> None:
    column = np.zeros(2, np.int64)
    log = UndoLog()
    log.add(column, 0, 5)
    log.commit()
    log.rollback(0)
    assert column.tolist() == [5, 0]


@pytest.mark.parametrize("place", [-1, 1])
def test_index_outside_array_is_refused(place: int) -> None:
    with pytest.raises(ValueError, match="checkpoint"):
        UndoLog().rollback(place)


def test_growth_keeps_contents() -> None:
    larger = grown(np.arange(4).reshape(2, 2), (3, 3), fill=9)
    assert larger.tolist() == [[0, 1, 9], [2, 3, 9], [9, 9, 9]]
