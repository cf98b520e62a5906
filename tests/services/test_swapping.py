"""Services that take turns: which one is stopped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.services.serving.swapping import Loaded, WaitingService, choose

NEED = WaitingService("new", "lab", 1000)


def loaded(name: str, unused_s: float = 60.0, **fields: Any) -> Loaded:
    values = {"permille": 1000, "loaded_s": 100.0, "min_loaded_s": 60.0, "may_stop": True, "project": "lab"} | fields
    return Loaded(id=name, unused_s=unused_s, **values)


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ([loaded("a"), loaded("b", 90)], ("b",)),  # the least recently used
        ([loaded("a", loaded_s=59.0)], ()),
        ([loaded("a", loaded_s=None)], ()),  # it starts
        ([loaded("a", may_stop=False)], ()),
        ([loaded("a", project="other")], ()),
        ([loaded("new")], ()),
        ([loaded("a", 90, permille=500)], ()),  # in vain
        ([loaded("a", 90, permille=500), loaded("b", 80, permille=500), loaded("c", 70)], ("a", "b")),
        ([loaded("a", 90, permille=500), loaded("b", 80)], ("b",)),  # one is enough
        ([], ()),
    ],
)
def test_who_gives_way(rows: list[Loaded], chosen: tuple[str, ...]) -> None:
    assert choose(NEED, rows) == chosen


rows = st.lists(
    st.builds(
        loaded,
        st.sampled_from("abcdefgh"),
        st.floats(0, 1000),
        permille=st.integers(0, 2000),
        loaded_s=st.none() | st.floats(0, 100),
        may_stop=st.booleans(),
    ),
    unique_by=lambda row: row.id,
)


@given(rows, st.integers(1, 3000))
def test_those_who_give_way_suffice_and_may_stop(found: list[Loaded], need: int) -> None:
    by_id = {row.id: row for row in found}
    chosen = [by_id[each] for each in choose(WaitingService("new", "lab", need), found)]
    assert all(row.may_stop and (row.loaded_s or 0) >= row.min_loaded_s for row in chosen)
    if chosen:
        assert sum(row.permille for row in chosen) >= need
