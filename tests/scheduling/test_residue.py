"""What the rest of a GPU is worth, against linear programmes that can be solved by hand or by brute force."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool.scheduling.residue import LEVELS, _Filling, _prices, _supply, level_of, wasted


def test_nothing_is_wasted_where_parts_fill_a_gpu_exactly() -> None:
    for part in (1000, 500, 250, 125, 200, 100):
        waste = wasted({part: 1.0})
        assert waste[1000] == pytest.approx(0, abs=0.1)
        assert waste[part] == pytest.approx(0, abs=0.1)


def test_thirds_fill_a_gpu() -> None:
    assert wasted({333: 1.0})[1000] == pytest.approx(0, abs=2)


def test_a_rest_too_small_for_anything_is_wasted() -> None:
    waste = wasted({810: 1.0, 500: 1.0})
    assert waste[190] == 190
    assert waste[480] == 480
    assert waste[500] < 100  # half of what a GPU with one for 810 wastes: two of 500 save it


def test_a_rest_is_worth_more_where_small_work_is_common() -> None:
    rare, common = wasted({810: 10.0, 190: 1.0}), wasted({810: 1.0, 190: 10.0})
    assert rare[190] > common[190]


def test_without_demand_nothing_is_said() -> None:
    assert not wasted({}).any()
    assert not wasted({1: 1.0}).any()  # less than a level


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_what_fits_by_thousandths_fits_by_levels(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert 0 <= level_of(low) <= level_of(high) <= LEVELS


demands = st.dictionaries(
    st.sampled_from([150, 250, 300, 333, 450, 500, 600, 750, 1000]), st.integers(1, 9), min_size=1
)


@settings(max_examples=25, deadline=None)
@given(demands)
def test_the_prices_are_those_of_the_linear_programme(demand: dict[int, int]) -> None:
    """Weak duality: what prices add up to is never less than what the best mix reaches, so the least is the optimum."""
    sizes, supply = _supply({size: float(often) for size, often in demand.items()})
    prices = _prices(sizes, supply)
    patterns = [
        np.bincount(chosen, minlength=len(sizes))
        for parts in range(8)
        for chosen in combinations_with_replacement(range(len(sizes)), parts)
        if sizes[list(chosen)].sum() <= LEVELS
    ]
    unit = 1000 / LEVELS
    gains = [float(counts @ (sizes * unit - prices)) for counts in patterns]
    bound = float(supply @ prices) + max(gains)
    assert _Filling(sizes, sizes * unit - prices).value[LEVELS] == pytest.approx(max(gains), abs=1e-6)
    assert bound <= other_prices(patterns, sizes * unit, supply) * (1 + 1e-6)


def other_prices(patterns: list[np.ndarray], worth: np.ndarray, supply: np.ndarray) -> float:
    """The least that many other prices add up to, found by following the gradient: it comes near, from above."""
    table, prices, best = np.array(patterns, dtype=float), np.zeros(len(worth)), np.inf
    for step in range(2_000):
        gains = table @ (worth - prices)
        pattern = table[int(gains.argmax())]
        best = min(best, float(supply @ prices + gains.max()))
        prices = np.maximum(prices - 300 / (1 + step) ** 0.75 * (supply - pattern), 0)
    return best
