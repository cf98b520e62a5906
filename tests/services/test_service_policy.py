"""The scheduling policy: validated, stored, applied at once, and never a reason not to start."""

from __future__ import annotations

import math

import pytest

from gpupool.domain.decode import decode
from gpupool.domain.errors import ErrorCode, GpupoolError
from gpupool.scheduling.policy import Policy, Settings
from gpupool.scheduling.state.user_order import Order


def test_default_policy_equals_scheduler_defaults() -> None:
    assert Policy().settings(Settings()) == Settings()


def test_stored_policy_is_read_back_despite_unknown_fields() -> None:
    policy = Policy(min_runtime_s=5, consolidate_after_s=None, order=Order.SHORTEST, turn_s=60)
    assert decode(Policy, {**policy.to_dict(), "order": "shortest", "of_tomorrow": 1}) == policy
    assert decode(Policy, {}) == Policy()


def test_changed_policy_applies_at_once() -> None:
    settings = Policy(min_runtime_s=5, half_life_s=60, usage_weight=0, order=Order.SHORTEST).settings(Settings())
    assert (settings.min_runtime_s, settings.decay.half_life_s, settings.usage_weight) == (5, 60, 0)
    assert settings.order is Order.SHORTEST
    assert settings.max_consolidations == Settings().max_consolidations
    assert Policy(unsaved_after_s=5).settings(Settings()).unsaved_after_s == 5
    assert Policy(unsaved_after_s=None).settings(Settings()).unsaved_after_s == math.inf
    assert Policy(consolidate_after_s=None).settings(Settings()).max_consolidations == 0
    assert Policy().settings(Settings(max_consolidations=0)).max_consolidations > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_runtime_s": -1},
        {"turn_s": 1e12},
        {"unsaved_after_s": -1},
        {"max_requests_per_second": 9},
        {"verify_idle_s": 59},
        {"verify_level": 4},
        {"half_life_s": 0},
        {"half_life_s": float("nan")},
        {"usage_weight": 101},
        {"usage_weight": -0.1},
    ],
)
def test_invalid_policy_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(GpupoolError) as refused:
        Policy(**wrong)  # type: ignore[arg-type]
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert next(iter(wrong)) in refused.value.message
