"""The value of the free rest of a GPU, compared with linear programmes solved by hand or by brute force."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool.scheduling.placement.packing_value import LEVELS, _Filling, _prices, _supply, level_of, wasted


def test_no_waste_if_slices_fill_a_gpu_exactly() -> None:
    for part in (1000, 500, 250, 125, 200, 100):
        waste = wasted({part: 1.0})
        assert waste[1000] == pytest.approx(0, abs=0.1)
        assert waste[part] == pytest.approx(0, abs=0.1)


def test_thirds_fill_a_gpu() -> None:
    assert wasted({333: 1.0})[1000] == pytest.approx(0, abs=2)


def test_rest_too_small_for_any_request_is_wasted() -> None:
    waste = wasted({810: 1.0, 500: 1.0})
    assert waste[190] == 190
    assert waste[480] == 480
    assert waste[500] < 100  # half of the waste of a GPU with one slice of 810: two slices of 500 save it


def test_rest_has_higher_value_if_small_requests_are_common() -> None:
    rare, common = wasted({810: 10.0, 190: 1.0}), wasted({810: 1.0, 190: 10.0})
    assert rare[190] > common[190]


def test_no_value_without_demand() -> None:
    assert not wasted({}).any()
    assert not wasted({1: 1.0}).any()  # below one level


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_fit_by_thousandths_implies_fit_by_levels(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert 0 <= level_of(low) <= level_of(high) <= LEVELS


demands = st.dictionaries(
    st.sampled_from([150, 250, 300, 333, 450, 500, 600, 750, 1000]), st.integers(1, 9), min_size=1
)


@settings(max_examples=25, deadline=None)
@given(demands)
def test_prices_equal_linear_programme(demand: dict[int, int]) -> None:
    """Check weak duality: the sum of prices is at least the value of the best mix, so the smallest sum is optimal."""
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
    """Return the smallest sum of many other prices, by gradient descent: it approaches the optimum from above."""
    table, prices, best = np.array(patterns, dtype=float), np.zeros(len(worth)), np.inf
    for step in range(2_000):
        gains = table @ (worth - prices)
        pattern = table[int(gains.argmax())]
        best = min(best, float(supply @ prices + gains.max()))
        prices = np.maximum(prices - 300 / (1 + step) ** 0.75 * (supply - pattern), 0)
    return best
