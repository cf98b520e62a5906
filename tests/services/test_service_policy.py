"""The scheduling policy: bounded, kept, in force at once, and never a reason not to start."""

from __future__ import annotations

import pytest

from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.scheduling.order import Order
from gpupool.scheduling.policy import Policy
from gpupool.scheduling.values import Settings


def test_the_default_policy_is_what_a_scheduler_does_anyway() -> None:
    assert Policy().settings(Settings()) == Settings()


def test_it_comes_back_as_it_was_kept_whatever_a_newer_version_added() -> None:
    policy = Policy(min_runtime_s=5, consolidate_after_s=None, order=Order.SHORTEST, turn_s=60)
    assert Policy.from_dict({**policy.to_dict(), "order": "shortest", "of_tomorrow": 1}) == policy
    assert Policy.from_dict({}) == Policy()


def test_what_it_says_is_in_force() -> None:
    settings = Policy(min_runtime_s=5, half_life_s=60, usage_weight=0, order=Order.SHORTEST).settings(Settings())
    assert (settings.min_runtime_s, settings.decay.half_life_s, settings.usage_weight) == (5, 60, 0)
    assert settings.order is Order.SHORTEST
    assert settings.max_consolidations == Settings().max_consolidations
    assert Policy(consolidate_after_s=None).settings(Settings()).max_consolidations == 0
    assert Policy().settings(Settings(max_consolidations=0)).max_consolidations > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_runtime_s": -1},
        {"turn_s": 1e12},
        {"half_life_s": 0},
        {"half_life_s": float("nan")},
        {"usage_weight": 101},
        {"usage_weight": -0.1},
    ],
)
def test_what_is_not_possible_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(GpupoolError) as refused:
        Policy(**wrong)  # type: ignore[arg-type]
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert next(iter(wrong)) in refused.value.message
