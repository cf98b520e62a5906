"""Quantities as people read them."""

from __future__ import annotations

import pytest

from gpupool.domain.units import MAX_NAMED_HOLDERS, format_duration, format_holders


def test_few_holders_of_a_gpu_are_named() -> None:
    assert format_holders([]) == []
    held = [("ann", "train", 500), ("bob", "sweep", 20), ("bob", "sweep", 20)]
    assert format_holders(held) == ["ann/train 0.50", "bob/sweep x2 0.04"]


def test_many_holders_of_a_gpu_are_grouped_by_user() -> None:
    held = [("ann", f"notebook-{n}", 40) for n in range(MAX_NAMED_HOLDERS)]
    assert format_holders(held) == [f"ann/notebook-{n} 0.04" for n in range(MAX_NAMED_HOLDERS)]
    held += [("bob", "train", 250)]
    assert format_holders(held) == ["ann 0.12 (3 workloads)", "bob/train 0.25"]
    replicas = [("ann", "sweep", 20)] * 50
    assert format_holders(replicas) == ["ann/sweep x50 1.00"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.01, "<0.1s"), (0.31, "0.3s"), (3.0, "3s"), (9.94, "9.9s"), (9.96, "9s"), (75.5, "1m15s")],
)
def test_short_durations_have_tenths(seconds: float, text: str) -> None:
    assert format_duration(seconds, tenths=True) == text
